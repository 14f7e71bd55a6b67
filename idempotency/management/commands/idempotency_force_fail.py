from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from idempotency import doubts, inspection
from idempotency.approvals import AlreadyProposed, Person
from idempotency.doubts import Ending
from idempotency.enquiry import Told
from idempotency.management import open_key
from idempotency.management.key_report import KeyReport
from idempotency.management.report_command import ReportCommand
from idempotency.models import Choice
from idempotency.operators import Seen


class Command(ReportCommand):
    help = (
        "End the attempt of a key that is processing or in doubt. Says what it would do, and does "
        "it with --yes; above FOUR_EYES_ABOVE it proposes it, and somebody approves in the admin. "
        "Exit codes: 0 done, proposed or said, 1 no such open key, 3 it changed meanwhile, 4 there "
        "is a proposal already."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        open_key.add_arguments(parser)
        outcome = parser.add_mutually_exclusive_group(required=True)
        outcome.add_argument(
            "--free", action="store_true", help="The same request may run again, or resume."
        )
        outcome.add_argument(
            "--final", action="store_true", help="Every retry gets 410 force_failed."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        report = open_key.chosen(options, self.alias(options))
        ending = _end(report, options) if options["yes"] else None
        if ending is Ending.CHANGED:
            raise open_key.changed(report)
        data = {
            "done": ending is Ending.DONE,
            "proposed": ending is Ending.PROPOSED,
            "owner": report.key.owner,
            "record": report.key.pk,
            "risk": inspection.risk_of_force_fail(report.facts)[0].value,
        }
        self.tell(options["json"], data, _lines(report, options, ending))


def _end(report: KeyReport, options: dict[str, Any]) -> Ending:
    try:
        return doubts.decide(
            report.key.pk,
            seen=Seen.of(report.key),
            told=Told(Choice.FINAL if options["final"] else Choice.FREE, options["reason"]),
            person=Person(options["actor"]),
            using=report.key._state.db,
        )
    except AlreadyProposed as error:
        words = "There is a proposal already: approve or reject that in the admin first."
        raise CommandError(words, returncode=open_key.REFUSED) from error


def _lines(report: KeyReport, options: dict[str, Any], ending: Ending | None) -> Iterator[str]:
    yield report.title
    yield f"  {report.standing}"
    yield f"  {inspection.risk_of_force_fail(report.facts)[1]}"
    if options["free"] and inspection.freed_leads_to_doubt(report.facts):
        yield "  Its call cannot be repeated safely: freed, a retry leads into doubt again."
    leads_to = "every retry gets 410" if options["final"] else "the same request may run again"
    if ending is Ending.DONE:
        yield f"Ended: {leads_to}."
    elif ending is Ending.PROPOSED:
        yield "Proposed: it takes another person, who approves in the admin. Nothing is ended yet."
    else:
        yield f"It would be ended: {leads_to}. Nothing was written."
        yield f"Repeat with --yes --owner {report.key.owner} to do it."
