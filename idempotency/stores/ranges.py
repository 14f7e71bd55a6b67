"""Walk a whole table step by step, where no index leads to the rows: for what may take its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connections
from django.db.models import Max, QuerySet

from idempotency.models import StoredResponse

#: Records of one step, some 30 ms.
STEP = 100_000


def ranges(table: QuerySet[Any]) -> Iterator[QuerySet[Any]]:
    """A table, or one day of it, a range of the primary key at a time, up to the newest record that
    there is now."""
    ids = table.order_by("pk").values_list("pk", flat=True)
    last = table.aggregate(last=Max("pk"))["last"] or 0
    start = ids.first()
    while start is not None and start <= last:
        end = min(start + STEP, last + 1)
        yield table.filter(pk__gte=start, pk__lt=end).order_by("pk")
        start = ids.filter(pk__gte=end).first()


def answers_by_day(using: str) -> Iterator[QuerySet[StoredResponse]]:
    """The stored answers of one day after the other, within which their key leads; elsewhere than
    on PostgreSQL all of them at once."""
    answers = StoredResponse.objects.using(using)
    if connections[using].vendor != "postgresql":
        yield answers.all()
        return
    days = answers.order_by("day").values_list("day", flat=True)
    day = days.first()
    while day is not None:
        yield answers.filter(day=day)
        day = days.filter(day__gt=day).first()
