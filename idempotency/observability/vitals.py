"""How things stand in the database: what is stuck, in doubt, late or running out.

Cheap on ten million keys: every read goes through an index that holds only what is unfinished, or
is an estimate of the server's, and none looks at more than ``MOST`` rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connections, router
from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from idempotency import partitions
from idempotency.conf import settings
from idempotency.core.states import SETTLED, State
from idempotency.models import IdempotencyKey, MessageState, OutboxMessage
from idempotency.outbox import channels
from idempotency.outbox.claims import UNSENT, claimable
from idempotency.stores import clock

#: A number that has reached this may be larger: nobody counted on.
MOST = 10_000
#: Destinations of the outbox that are looked at, and due messages of each.
LANES, WINDOW = 500, 20
#: How many of the oldest keys tell whether pruning keeps up.
OLDEST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Something that is open. ``number`` is at most ``MOST``."""

    number: int = 0
    #: Of the oldest; zero where there is none.
    age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Vitals:
    """One look at the database."""

    #: Attempts whose lease is over without a word of their owner: it died. The age is since the
    #: end of the lease.
    abandoned: Backlog
    #: Operations whose outcome is still unknown and that nobody is at: the job resumes them. The
    #: age is since the recovery point.
    suspended: Backlog
    #: Keys that wait for a decision. The age is since the recovery point.
    in_doubt: Backlog
    #: By channel: messages that are not delivered, and for how long the longest due one could have
    #: been sent.
    outbox: dict[str, Backlog]
    dead_messages: int
    #: Days after today that have partitions; None where there are none.
    days_ahead: int | None
    #: Days that are older than the retention and still there. An open key may keep one.
    droppable_days: int
    #: For how long the longest expired of the oldest keys has been waiting to be pruned.
    prune_lag: timedelta
    #: An estimate of the server's; None where it has none.
    keys: int | None


def read(using: str | None = None) -> Vitals:
    """Look at the database that keys are written to, or at ``using``."""
    alias = using or router.db_for_write(IdempotencyKey)
    abandoned, suspended = _over(alias)
    return Vitals(
        abandoned=abandoned,
        suspended=suspended,
        in_doubt=_in_doubt(alias),
        outbox=_outbox(alias),
        dead_messages=_number(_messages(alias).filter(state=MessageState.DEAD)),
        days_ahead=partitions.days_ahead(alias),
        droppable_days=_droppable_days(alias),
        prune_lag=_prune_lag(alias),
        keys=_estimate(alias),
    )


# Keys


def _over(using: str) -> tuple[Backlog, Backlog]:
    """What is PROCESSING although its lease is over: abandoned, and suspended.

    A claim clears the failure, so an owner that left one ended its lease itself.
    """
    over = _keys(using).filter(state=State.PROCESSING.value, lease_expires_at__lte=clock.now())
    dead, suspended = Q(failure=""), ~Q(failure="")
    found = over.order_by("lease_expires_at")[:MOST].aggregate(
        abandoned=Count("pk", filter=dead),
        abandoned_age=Max(_since(F("lease_expires_at")), filter=dead),
        suspended=Count("pk", filter=suspended),
        suspended_age=Max(_since(_called_at()), filter=suspended),
    )
    return (
        Backlog(found["abandoned"], found["abandoned_age"] or timedelta(0)),
        Backlog(found["suspended"], found["suspended_age"] or timedelta(0)),
    )


def _in_doubt(using: str) -> Backlog:
    # Without a lease, as the constraint has it: the end of the index, however long the rest is.
    doubtful = _keys(using).filter(state=State.IN_DOUBT.value, lease_expires_at__isnull=True)
    found = doubtful[:MOST].aggregate(number=Count("pk"), age=Max(_since(_called_at())))
    return Backlog(found["number"], found["age"] or timedelta(0))


def _called_at() -> Combinable:
    return Coalesce("recovery_point_at", "created_at")


def _since(moment: Any) -> Combinable:
    return ExpressionWrapper(clock.now() - moment, output_field=DurationField())


def _prune_lag(using: str) -> timedelta:
    """Pruning walks from the oldest key on, so what it has not come to shows there."""
    expired = Q(state__in=[state.value for state in SETTLED], expires_at__lte=clock.now())
    oldest = _keys(using).order_by("pk")[:OLDEST_KEYS]
    lag: timedelta | None = oldest.aggregate(
        lag=Max(_since(F("expires_at")), filter=expired),
    )["lag"]
    return lag or timedelta(0)


def _estimate(using: str) -> int | None:
    connection = connections[using]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)",
            [IdempotencyKey._meta.db_table],
        )
        row = cursor.fetchone()
    # Below zero: never analysed.
    return None if row is None or row[0] < 0 else int(row[0])


def _keys(using: str) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(using).order_by()


# The outbox


def _outbox(using: str) -> dict[str, Backlog]:
    late = _lateness(using)
    # Also what no channel of this process would deliver: somebody renamed it.
    names = sorted(late.keys() | {channel.name for channel in channels.all_channels()})
    unsent = _messages(using).filter(state__in=UNSENT)
    return {
        name: Backlog(_number(unsent.filter(channel=name)), late.get(name) or timedelta(0))
        for name in names
    }


def _lateness(using: str) -> dict[str, timedelta | None]:
    """Channel → for how long its longest due message could have been sent."""
    if connections[using].vendor != "postgresql":
        unsent = _messages(using).filter(state__in=UNSENT).values_list("channel", flat=True)
        late = claimable(using).order_by().values_list("channel")
        return dict.fromkeys(unsent.distinct()) | dict(late.annotate(late=Max(_since(F("due_at")))))
    now = partitions.database_now(using)
    with connections[using].cursor() as cursor:
        cursor.execute(_lag_query(), {"now": now, "lanes": LANES, "window": WINDOW})
        return dict(cursor.fetchall())


@cache
def _lag_query() -> str:
    return (Path(__file__).parent / "outbox_lag.sql").read_text()


def _messages(using: str) -> QuerySet[OutboxMessage]:
    return OutboxMessage.objects.using(using).order_by()


def _number(rows: QuerySet[Any]) -> int:
    return rows[:MOST].count()


# Partitions


def _droppable_days(using: str) -> int:
    if connections[using].vendor != "postgresql":
        return 0
    oldest_kept = (partitions.database_now(using) - settings().retention).date()
    days = {one.day for one in partitions.list_partitions(using) if one.day < oldest_kept}
    return len(days)
