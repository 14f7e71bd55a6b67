"""Days of partitions, made and looked at by hand, and who may be in the way."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any

from django.db import connection, connections, transaction

from idempotency import partitions
from idempotency.partitions import Action, Step
from tests.integration.portable.conformance.harness import NOW, PATIENCE

TODAY = NOW.date()
DAY = timedelta(days=1)
FAR = TODAY + 100 * DAY
#: Older than the default retention of 30 days.
OLD = TODAY - 40 * DAY
#: What the migration makes.
USUAL = {TODAY + number * DAY for number in range(-1, 15)}


def run(statement: str, parameters: Any = None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0] if cursor.description else None


def create(parent: str, day: date) -> str:
    run("SELECT idempotency_ensure_day_v1(%s, %s)", [parent, day])
    return Step(Action.CREATE, parent, day).table


def attached(parent: str) -> set[date]:
    return {
        partition.day
        for partition in partitions.list_partitions("default")
        if partition.parent == parent and partition.attached and not partition.pending
    }


def exists(table: str) -> bool:
    return bool(run("SELECT to_regclass(%s) IS NOT NULL", [table]))


def retire() -> list[str]:
    steps = partitions.plan("default", retire=True)
    return [str(outcome) for outcome in partitions.apply("default", steps)]


@contextmanager
def without_rights() -> Iterator[None]:
    """As an application whose database user may not create tables."""
    role = f"app_{uuid.uuid4().hex}"
    run(f"CREATE ROLE {role}")
    run(f"GRANT USAGE ON SCHEMA public TO {role}")
    run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    run(f"SET ROLE {role}")
    try:
        yield
    finally:
        run("RESET ROLE")
        run(f"DROP OWNED BY {role}")
        run(f"DROP ROLE {role}")


@contextmanager
def a_reader(table: str) -> Iterator[None]:
    """Another session in a transaction that has read the table, and does not end."""
    reading, done = threading.Event(), threading.Event()

    def read() -> None:
        try:
            with transaction.atomic():
                run(f"SELECT count(*) FROM {table}")  # noqa: S608  one of our own names
                reading.set()
                assert done.wait(PATIENCE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(read)
        assert reading.wait(PATIENCE)
        try:
            yield
        finally:
            done.set()
            future.result(PATIENCE)
