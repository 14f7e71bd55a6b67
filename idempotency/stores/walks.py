"""Look through a large table for as long as there is time, where no index leads to the rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Max, Min, QuerySet

from idempotency.stores.bounds import QueryTooSlow, statement_timeout

#: Records that are looked at in one statement, a range of the primary key: some 30 ms.
STEP = 100_000


@dataclass(frozen=True, slots=True)
class Walked:
    """What was found, the newest first."""

    found: list[Any]
    #: This record and all newer ones were looked at; None: the oldest one, too.
    since: int | None


def walk(
    rows: QuerySet[Any], seconds: float, *, before: int | None = None, most: int | None = None
) -> Walked:
    """Read ``rows`` from the newest record on, or from the one before ``before``, by primary key.

    Ends with ``most`` rows (``since`` then says nothing), at the oldest record, or after
    ``seconds``.
    """
    until = time.monotonic() + seconds
    ends = rows.model._base_manager.using(rows.db).aggregate(first=Min("pk"), last=Max("pk"))
    first, last = ends["first"] or 1, ends["last"] or 0
    since = last + 1 if before is None else min(before, last + 1)
    found: list[Any] = []
    try:
        while since > first and (left := until - time.monotonic()) > 0:
            step = rows.filter(pk__gte=since - STEP, pk__lt=since).order_by("-pk")
            with statement_timeout(rows.db, timedelta(seconds=left)):
                found += step if most is None else step[: most - len(found)]
            if most is not None and len(found) >= most:
                break
            since -= STEP
    except QueryTooSlow:
        pass
    return Walked(found, since if since > first else None)
