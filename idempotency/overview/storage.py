"""The table of keys by state, and what the tables take: estimates of the server's, and counts of
what is open, through the index that holds nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections
from django.db.models import Count, Min, QuerySet

from idempotency import partitions
from idempotency.conf import settings
from idempotency.core.states import State
from idempotency.models import IdempotencyKey
from idempotency.observability.vitals import MOST
from idempotency.overview.facts import Day, Keys, StateCount, Storage, Table
from idempotency.partitions import Action, Partition, Step


def read_keys(using: str, now: datetime) -> Keys:
    """The keys by state. What is open is counted, up to ``MOST``."""
    keys = IdempotencyKey.objects.using(using).order_by()
    # By its lease, as the constraint has it, so that the index is read from one end.
    running = keys.filter(state=State.PROCESSING.value, lease_expires_at__isnull=False)
    found = running.order_by("lease_expires_at")[:MOST].aggregate(
        number=Count("pk"), oldest=Min("created_at")
    )
    doubtful = keys.filter(state=State.IN_DOUBT.value, lease_expires_at__isnull=True)
    estimated_at = _analysed_at(using)
    return Keys(
        states=(
            _counted(State.PROCESSING, found["number"]),
            _counted(State.IN_DOUBT, doubtful[:MOST].count()),
            _estimated(State.FAILED, keys, estimated_at),
            _estimated(State.SUCCEEDED, keys, estimated_at),
        ),
        oldest_processing=found["oldest"] and now - found["oldest"],
        estimated_at=estimated_at,
    )


def _counted(state: State, number: int) -> StateCount:
    return StateCount(state, number, or_more=number >= MOST)


def _estimated(
    state: State, keys: QuerySet[IdempotencyKey], estimated_at: datetime | None
) -> StateCount:
    """As the planner reckons, from pg_class and pg_stats and the present size of the table."""
    if estimated_at is None:
        return StateCount(state, None)
    [plan] = json.loads(keys.filter(state=state.value).values("pk").explain(format="json"))
    return StateCount(state, int(plan["Plan"]["Plan Rows"]), estimated=True)


def _analysed_at(using: str) -> datetime | None:
    if connections[using].vendor != "postgresql":
        return None
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT greatest(last_analyze, last_autoanalyze) FROM pg_stat_all_tables "
            "WHERE relid = to_regclass(%s)",
            [IdempotencyKey._meta.db_table],
        )
        row = cursor.fetchone()
    return None if row is None else row[0]


class _Size(NamedTuple):
    """One row of storage.sql."""

    name: str
    rows: int
    size: int
    indexes: int


def read_storage(using: str, now: datetime) -> Storage | None:
    """What the tables take. None but on PostgreSQL."""
    if connections[using].vendor != "postgresql":
        return None
    found = partitions.list_partitions(using)
    tables = [model._meta.db_table for model in _models()]
    names = [*tables, *(_table(one) for one in found)]
    with connections[using].cursor() as cursor:
        cursor.execute(_storage_query(), [names])
        sizes = {row[0]: _Size(*row) for row in cursor.fetchall()}
    return Storage(
        tables=tuple(_sums(tables, found, sizes)),
        days=tuple(_days(found, sizes)),
        next_drop=_next_drop(found, now),
    )


def _models() -> list[Any]:
    models = apps.get_app_config("idempotency").get_models()
    return [model for model in models if not model._meta.proxy]


def _sums(tables: list[str], found: list[Partition], sizes: dict[str, _Size]) -> list[Table]:
    """The largest first."""
    parts: dict[str, list[_Size]] = defaultdict(list)
    for name in tables:
        if name in sizes:
            parts[name].append(sizes[name])
    for one in found:
        if _table(one) in sizes:
            parts[one.parent].append(sizes[_table(one)])
    summed = [
        Table(
            name=name,
            rows=_rows(of_table),
            size=sum(part.size for part in of_table),
            indexes=sum(part.indexes for part in of_table),
        )
        for name, of_table in parts.items()
    ]
    return sorted(summed, key=lambda table: -table.size)


def _rows(parts: list[_Size]) -> int | None:
    known = [part.rows for part in parts if part.rows >= 0]
    return sum(known) if known else None


def _days(found: list[Partition], sizes: dict[str, _Size]) -> list[Day]:
    by_day: dict[date, list[Partition]] = defaultdict(list)
    for one in found:
        by_day[one.day].append(one)
    return [
        Day(
            day=day,
            rows=sum(max(0, sizes[_table(one)].rows) for one in ones if _table(one) in sizes),
            size=sum(sizes[_table(one)].size for one in ones if _table(one) in sizes),
            attached=all(one.attached and not one.pending for one in ones),
        )
        for day, ones in sorted(by_day.items())
    ]


def _next_drop(found: list[Partition], now: datetime) -> tuple[date, datetime] | None:
    """The newest day is never dropped; today's is not before it is over and its retention too."""
    days = sorted({one.day for one in found})
    if len(days) < 2:
        return None
    over = datetime.combine(days[0] + timedelta(days=1), time(), UTC)
    return days[0], over + settings().retention


def _table(partition: Partition) -> str:
    return Step(Action.DROP, partition.parent, partition.day).table


@cache
def _storage_query() -> str:
    return (Path(__file__).parent / "storage.sql").read_text()
