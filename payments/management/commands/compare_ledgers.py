"""Compare the gateway's ledger with ours, as the nightly task does."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_datetime

from payments.gateways.base import MovementsUnknown
from payments.reconciliation.job import compare_ledgers


def _moment(text: str) -> datetime:
    moment = parse_datetime(text)
    if moment is None or moment.tzinfo is None:
        raise ArgumentTypeError("give an ISO 8601 time with an offset: 2026-11-29T00:00:00Z")
    return moment


class Command(BaseCommand):
    help = (
        "Compare the gateway's ledger with ours, and keep what differs for the admin. Without "
        "options: the last three days but for the last hour."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", type=_moment, help="compare what moved from this time on")
        parser.add_argument("--until", type=_moment, help="and before this time")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            result = compare_ledgers(since=options["since"], until=options["until"])
        except MovementsUnknown as error:
            raise CommandError(f"Not every day was compared: {error}.") from error
        self.stdout.write(str(result))
