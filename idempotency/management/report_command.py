"""What the commands of operators share: options, output, and how times look on a terminal."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, router
from django.template.defaultfilters import filesizeformat

from idempotency.models import IdempotencyKey

#: There is nothing such, or it needs somebody. (2 is a wrong option.)
NOTHING = ATTENTION = 1


class ReportCommand(BaseCommand):
    """Says how something stands, for people or as JSON."""

    # A question at three in the morning should not stop at a warning about something else.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="The database to look at; by default the one that keys are written to.",
        )
        parser.add_argument("--json", action="store_true", help="Print JSON.")

    @staticmethod
    def alias(options: Mapping[str, Any]) -> str:
        """The database that was chosen."""
        return options["database"] or router.db_for_write(IdempotencyKey)

    def tell(self, as_json: bool, data: Any, lines: Iterable[str]) -> None:
        """Print ``data`` as JSON, or else ``lines``."""
        if as_json:
            self.stdout.write(json.dumps(data, cls=DjangoJSONEncoder, indent=2))
        else:
            for line in lines:
                self.stdout.write(line)


def utc(at: datetime) -> str:
    """Never the machine's zone: an incident is told in one."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(duration: timedelta) -> str:
    """Whole seconds: ``0:04:10``, ``2 days, 1:00:00``."""
    return str(timedelta(seconds=int(abs(duration).total_seconds())))


def size(number: int) -> str:
    """Bytes for people."""
    return filesizeformat(number).replace("\xa0", " ")


def table(rows: Iterable[Iterable[object]]) -> list[str]:
    """Rows in columns, the numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
