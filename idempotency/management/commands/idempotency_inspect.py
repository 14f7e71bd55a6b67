from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from idempotency.management import key_report
from idempotency.management.report_command import ReportCommand


class Command(ReportCommand):
    help = (
        "Tell a key's story and what a retry would get now. Exit codes: 0 found, 1 there is no "
        "such key."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "term",
            nargs="+",
            help="A key; or an account, a blank and a key; or the digest that logs show.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        reports, advice = key_report.find_some(" ".join(options["term"]), self.alias(options))
        data = {"advice": advice, "keys": [key_report.data_of(report) for report in reports]}
        lines = [line for report in reports for line in (*key_report.lines_of(report), "")]
        self.tell(options["json"], data, [*lines, advice] if advice else lines[:-1])
