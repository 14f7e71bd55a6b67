"""What the commands of the scheduled jobs share: options, output and exit code."""

from __future__ import annotations

import json
from abc import abstractmethod
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from idempotency.jobs import Result

#: Something went wrong; the log says what, the rest was done.
FAILED = 1
#: Another run of the job was at work, so this one did nothing. (2 is a wrong option.)
BUSY = 3


class JobCommand(BaseCommand):
    """Runs one job once. Exit codes: 0 done, 1 something failed, 3 another run was at work."""

    #: Whether the job can say beforehand what it would do: ``--dry-run``.
    can_rehearse: ClassVar[bool] = False
    # What cron runs every few seconds should neither load the URLs nor stop at a warning.
    requires_system_checks = []

    @abstractmethod
    def run(self, **options: Any) -> Result:
        """Run the job with ``using`` and, where it can rehearse, ``dry_run``."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="The database to work on; by default the one that keys are written to.",
        )
        parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
        if self.can_rehearse:
            parser.add_argument(
                "--dry-run", action="store_true", help="Say what would be done; change nothing."
            )

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = {"dry_run": options["dry_run"]} if self.can_rehearse else {}
        result = self.run(using=options["database"], **chosen)
        if options["json"]:
            self.stdout.write(json.dumps(asdict(result)))
        else:
            self._tell(result, options["verbosity"])
        if result.busy:
            raise CommandError(f"{result.job}: another run is at work.", returncode=BUSY)
        if result.failed:
            raise CommandError(f"{result.job}: {result.failed} failed.", returncode=FAILED)

    def _tell(self, result: Result, verbosity: int) -> None:
        if verbosity and not result.busy:
            would = "would be " if result.dry_run else ""
            more = ", and there is more to do" if result.more else ""
            self.stdout.write(f"{result.job} on {result.using}: {result.done} {would}done{more}")
            for line in result.details:
                self.stdout.write(f"  {line}")
