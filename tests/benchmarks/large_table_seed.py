"""Fills the tables by SQL inside the server, in minutes, to what they hold after a month."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django.db import connection

from idempotency import partitions
from idempotency.core.keys import Scope
from idempotency.partitions import Action, Step

#: Route → how many of a thousand keys were sent to it.
ROUTES = {
    "POST /v1/charges": 560,
    "POST /v1/transfers": 210,
    "POST /v1/charges/{charge_id}/refunds": 90,
    "PATCH /v1/charges/{charge_id}": 60,
    "inbox:gateway": 75,
    # A route that is gone from the URLs: its keys are still to be found.
    "POST /v1/payouts": 5,
}


def seed(keys: int, days: int) -> None:
    """Fill an empty, migrated database."""
    _create_days(days)
    # The statement timeout of the settings is for requests.
    _execute("SET statement_timeout = 0")
    _execute("SET maintenance_work_mem = '1GB'")
    _execute("SET max_parallel_maintenance_workers = 2")
    text = Path(__file__).with_name("large_table_seed.sql").read_text()
    values = {
        "keys": keys,
        "days": days,
        "routes": list(ROUTES),
        "shares": list(ROUTES.values()),
    }
    for statement in text.split(";\n"):
        began = time.perf_counter()
        _execute(statement, values)
        seconds = time.perf_counter() - began
        if seconds > 1:
            print(f"  {seconds:6.1f} s  {_first_words(statement)}")
    _check_digests(keys)


def is_empty() -> bool:
    """Whether there is anything to measure yet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('bench_route') IS NULL")
        empty: bool = cursor.fetchone()[0]
    return empty


def sizes() -> str:
    """What the tables hold, in a line."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(k.id), "
            "pg_size_pretty(pg_total_relation_size('idempotency_idempotencykey')), "
            "(SELECT pg_size_pretty(sum(pg_total_relation_size(relid))) "
            "FROM pg_partition_tree('idempotency_storedresponse')), "
            "(SELECT max(sequence) FROM idempotency_outboxmessage) "
            "FROM idempotency_idempotencykey AS k"
        )
        keys, of_keys, of_responses, messages = cursor.fetchone()
    return f"{keys:,} keys ({of_keys}), their responses ({of_responses}), {messages:,} messages"


def last() -> int:
    """The number of the newest seeded key."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM idempotency_idempotencykey_id_seq")
        number: int = cursor.fetchone()[0]
    return number


def key_of(number: int) -> tuple[str, str]:
    """The tenant and the key of one of the seeded rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT bench_tenant(%s), bench_key(%s)", [number, number])
        tenant, key = cursor.fetchone()
    return tenant, key


def _create_days(days: int) -> None:
    today = datetime.now(UTC).date()
    steps = [
        Step(Action.CREATE, parent, today - timedelta(days=ago))
        for parent in partitions.PARENTS
        for ago in range(days + 1)
    ]
    problems = [str(outcome) for outcome in partitions.apply("default", steps) if outcome.problem]
    if problems:
        raise SystemExit("\n".join(problems))


def _execute(statement: str, values: dict[str, object] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def _first_words(statement: str) -> str:
    lines = [line for line in statement.splitlines() if line and not line.startswith("--")]
    return lines[0][:80]


def _check_digests(keys: int) -> None:
    """A digest that SQL made is the one that the product would have made."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT route, tenant, key, digest FROM idempotency_idempotencykey WHERE id = ANY (%s)",
            [[1, keys // 2, keys]],
        )
        for route, tenant, key, digest in cursor.fetchall():
            if Scope(route, tenant, key).digest != bytes(digest):
                raise SystemExit("large_table_seed.sql makes digests that core/keys.py does not")
