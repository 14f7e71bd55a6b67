from __future__ import annotations

import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from typing import Any

from django.core.management.base import CommandError

from idempotency import inspection, operators
from idempotency.management import key_report
from idempotency.management.key_report import KeyReport
from idempotency.management.report_command import NOTHING, ReportCommand
from idempotency.operators import Seen

#: The key does not stand as it was seen. Nothing was written.
CHANGED = 3


class Command(ReportCommand):
    help = (
        "End the attempt of a key that is processing or in doubt. Says what it would do, and does "
        "it with --yes. Exit codes: 0 done or said, 1 no such open key, 3 it changed meanwhile."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("term", nargs="+", help="As for idempotency_inspect.")
        parser.add_argument("--record", type=int, help="Which one, where the term names several.")
        outcome = parser.add_mutually_exclusive_group(required=True)
        outcome.add_argument(
            "--free", action="store_true", help="The same request may run again, or resume."
        )
        outcome.add_argument(
            "--final", action="store_true", help="Every retry gets 410 force_failed."
        )
        told = "Kept in the key's story."
        parser.add_argument("--actor", required=True, type=_text(150), help=f"Who decides. {told}")
        parser.add_argument("--reason", required=True, type=_text(500), help=f"Why. {told}")
        parser.add_argument("--yes", action="store_true", help="Do it.")
        parser.add_argument(
            "--owner",
            type=uuid.UUID,
            help="Only while this attempt, as it was shown, owns the key.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        report = _the_one(" ".join(options["term"]), options["record"], self.alias(options))
        if options["owner"] not in (None, report.key.owner):
            raise _changed(report)
        if options["yes"] and not _end(report, options):
            raise _changed(report)
        data = {"done": options["yes"], "owner": report.key.owner, "record": report.key.pk}
        data |= {"risk": inspection.risk_of_force_fail(report.facts)[0].value}
        self.tell(options["json"], data, _lines(report, options))


def _text(most: int) -> Callable[[str], str]:
    def text(given: str) -> str:
        if not 0 < len(given.strip()) <= most:
            raise ArgumentTypeError(f"must have 1 to {most} characters")
        return given.strip()

    return text


def _the_one(term: str, record: int | None, using: str) -> KeyReport:
    reports, _advice = key_report.find_some(term, using)
    if record is not None:
        reports = [report for report in reports if report.key.pk == record]
    ready = [report for report in reports if report.facts.is_open]
    if not ready:
        raise CommandError("It is settled, or not there: nothing to end.", returncode=NOTHING)
    if len(ready) > 1:
        titles = "\n".join(f"  {report.title}" for report in ready)
        raise CommandError(f"Several keys; choose one by --record.\n{titles}", returncode=NOTHING)
    return ready[0]


def _end(report: KeyReport, options: dict[str, Any]) -> bool:
    return operators.force_fail(
        report.key.pk,
        seen=Seen.of(report.key),
        actor=options["actor"],
        reason=options["reason"],
        final=options["final"],
        using=report.key._state.db,
    )


def _changed(report: KeyReport) -> CommandError:
    text = f"{report.title} changed meanwhile: nothing was written. Look again."
    return CommandError(text, returncode=CHANGED)


def _lines(report: KeyReport, options: dict[str, Any]) -> Iterator[str]:
    yield report.title
    yield f"  {report.standing}"
    yield f"  {inspection.risk_of_force_fail(report.facts)[1]}"
    if options["free"] and inspection.freed_leads_to_doubt(report.facts):
        yield "  Its call cannot be repeated safely: freed, a retry leads into doubt again."
    leads_to = "every retry gets 410" if options["final"] else "the same request may run again"
    if options["yes"]:
        yield f"Ended: {leads_to}."
    else:
        yield f"It would be ended: {leads_to}. Nothing was written."
        yield f"Repeat with --yes --owner {report.key.owner} to do it."
