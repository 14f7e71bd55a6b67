"""How long the database may take over a statement that an operator asks for, and would take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet

#: SQLSTATE of a statement that ran into statement_timeout.
QUERY_CANCELED = "57014"
#: Up to this cost by the planner's reckoning a query is quick: to read a million keys, or a few by
#: an index.
CHEAP = 50_000


class QueryTooSlow(Exception):
    """The database gave a query up at its bound."""


@contextmanager
def statement_timeout(using: str, limit: timedelta) -> Iterator[None]:
    """Bound each statement of the block; raises QueryTooSlow. Only PostgreSQL has that bound."""
    if connections[using].vendor != "postgresql":
        yield
        return
    # Zero would be no bound at all.
    milliseconds = str(max(1, int(limit.total_seconds() * 1000)))
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout')")
            (before,) = cursor.fetchone()
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [milliseconds])
            yield
            # Inside an outer transaction the setting would outlive this block.
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) == QUERY_CANCELED:
            raise QueryTooSlow from error
        raise


def is_cheap(rows: QuerySet[Any]) -> bool:
    """Whether a query is quick, by the planner's reckoning. Elsewhere tables are small."""
    if connections[rows.db].vendor != "postgresql":
        return True
    with transaction.atomic(using=rows.db), connections[rows.db].cursor() as cursor:
        # Workers beside it would halve the reckoning, and read as many rows. Inside an outer
        # transaction the setting outlives this block: fewer workers, and nothing else.
        cursor.execute("SELECT set_config('max_parallel_workers_per_gather', '0', true)")
        explained = rows.explain(format="json")
    if not explained:  # Django knows that there is nothing, and asks nobody
        return True
    [plan] = json.loads(explained)
    cost: float = plan["Plan"]["Total Cost"]
    return cost <= CHEAP
