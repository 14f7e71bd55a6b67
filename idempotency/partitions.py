"""PostgreSQL keeps responses and events in a table a day. Here: making sure of a day.

Maintenance creates the days ahead. A day that is missing all the same must not stop a payment, so a
request makes sure of its day *before* its transaction begins; inside it two healers could deadlock.
"""

from __future__ import annotations

import logging
import time
from datetime import date, timedelta

from django.db import Error, connections, transaction

logger = logging.getLogger("idempotency")

#: The partitioned tables. The order is the order of their locks.
PARENTS = ("idempotency_storedresponse", "idempotency_keyevent")
#: How long a request waits at most for the right to create its day.
HEAL_LOCK_TIMEOUT = timedelta(milliseconds=500)
#: Seconds until a process that could not create a day tries again.
HEAL_PAUSE = 30.0

_Day = tuple[str, str, date]
_known: set[_Day] = set()
_failed_at: dict[_Day, float] = {}


def ensure_day(using: str, day: date) -> None:
    """Make sure that the tables of a day exist. Costs nothing once this process knows the day.

    Never raises for what the database says: without the right to create tables, or when the lock is
    not to be had in time, a warning is logged and the response will go to the newest day there is.
    Does nothing inside a transaction, where healing could deadlock, and on other databases.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    cached = _cache_key(using, day)
    if cached in _known or time.monotonic() - _failed_at.get(cached, -HEAL_PAUSE) < HEAL_PAUSE:
        return
    try:
        if not connection.get_autocommit():
            return
        created = [parent for parent in PARENTS if _create_day(using, parent, day)]
    except Error as error:
        _failed_at[cached] = time.monotonic()
        logger.warning("could not make sure of the partitions for %s: %s", day, error)
        return
    _failed_at.pop(cached, None)
    _known.add(cached)
    if created:
        logger.warning(
            "had to create the partitions for %s (%s): is create_partitions running?",
            day,
            ", ".join(created),
        )


def forget_day(using: str, day: date) -> None:
    """Look again the next time: the day turned out to be missing."""
    _known.discard(_cache_key(using, day))


def _cache_key(using: str, day: date) -> _Day:
    # The name too: tests point one alias at another database.
    return using, str(connections[using].settings_dict["NAME"]), day


def _create_day(
    using: str, parent: str, day: date, lock_timeout: timedelta = HEAL_LOCK_TIMEOUT
) -> bool:
    """Create a day of one table where it is missing, in a transaction of its own. True: it was."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        milliseconds = f"{lock_timeout / timedelta(milliseconds=1):.0f}ms"
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [milliseconds])
        cursor.execute("SELECT idempotency_ensure_day_v1(%s, %s)", [parent, day])
        created: bool = cursor.fetchone()[0]
    return created
