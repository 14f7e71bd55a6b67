from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from idempotency import partitions
from idempotency.conf import settings
from idempotency.management.report_command import ATTENTION, ReportCommand, size, table, utc
from idempotency.overview import storage
from idempotency.overview.facts import Storage


class Command(ReportCommand):
    help = (
        "List the day partitions (PostgreSQL). Exit codes: 0 fine, 1 fewer days ahead than "
        "PARTITION_DAYS_ALARM."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.alias(options)
        ahead = partitions.days_ahead(alias)
        found = (
            None if ahead is None else storage.read_storage(alias, partitions.database_now(alias))
        )
        if ahead is None or found is None:
            self.tell(
                options["json"], {"days_ahead": None, "days": []}, ["There are no partitions."]
            )
            return
        days = [asdict(day) for day in found.days]
        next_drop = found.next_drop and dict(zip(("day", "from"), found.next_drop, strict=True))
        data = {"days_ahead": ahead, "next_drop": next_drop, "days": days}
        self.tell(options["json"], data, _lines(found, ahead))
        if ahead < settings().partition_days_alarm:
            raise CommandError(
                f"Only {ahead} days ahead: run create_partitions.", returncode=ATTENTION
            )


def _lines(found: Storage, ahead: int) -> Iterator[str]:
    yield "Day, rows (estimated) and size of responses and events"
    yield from table(
        (f"  {one.day}", one.rows, size(one.size), "" if one.attached else "detached")
        for one in found.days
    )
    yield f"{ahead} days ahead"
    if found.next_drop is not None:
        day, when = found.next_drop
        yield f"{day} may be dropped from {utc(when)} on, once no live key needs it"
