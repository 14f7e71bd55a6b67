from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from idempotency import privacy
from idempotency.management.report_command import ATTENTION, ReportCommand
from idempotency.privacy import Erasure

#: Open keys that are listed.
LISTED = 20


class Command(ReportCommand):
    help = (
        "Erase what is stored of an account: its settled keys with their responses and events. "
        "Says what it would do, and does it with --yes. A retry with an erased key runs again, as "
        "a new request; --bodies keeps the keys. Exit codes: 0 erased or said, 1 keys are open and "
        "were left."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("tenant", help="The account, as the admin shows it.")
        parser.add_argument(
            "--bodies",
            action="store_true",
            help="Erase only the bodies of responses: a retry then gets 409 response_not_stored.",
        )
        parser.add_argument("--yes", action="store_true", help="Do it.")

    def handle(self, *args: Any, **options: Any) -> None:
        erasure = privacy.erase(
            options["tenant"],
            bodies_only=options["bodies"],
            dry_run=not options["yes"],
            using=self.alias(options),
        )
        data = {"erased": options["yes"], **asdict(erasure)}
        self.tell(options["json"], data, _lines(erasure, options))
        if options["yes"] and erasure.open:
            words = f"{len(erasure.open)} keys are open: settle them, then run this again."
            raise CommandError(words, returncode=ATTENTION)


def _lines(erasure: Erasure, options: dict[str, Any]) -> Iterator[str]:
    what = f"{erasure.keys} keys, {erasure.responses} responses and {erasure.events} events"
    if options["bodies"]:
        what = f"the bodies of {erasure.responses} responses"
    yield f"{'Erased' if options['yes'] else 'Would be erased'}: {what} of {options['tenant']}."
    if erasure.remembered:
        yield (
            f"{erasure.remembered} of the keys had not expired: a retry with one of them runs "
            "again, as a new request. --bodies keeps them."
        )
    for key in erasure.open[:LISTED]:
        yield f"Left, for it is open: record {key.record}, {key.state}, {key.route}"
    if len(erasure.open) > LISTED:
        yield f"… and {len(erasure.open) - LISTED} more"
    if not options["yes"]:
        yield "Nothing was erased. Repeat with --yes to do it."
