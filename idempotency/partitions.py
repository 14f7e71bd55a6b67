"""PostgreSQL keeps responses and events in a table a day: making sure of a day, planning, retiring.

Maintenance makes a plan, which can be printed, and applies it: days are created ahead and dropped
whole once they are old enough and no key needs them. Only tables that bear our comment are touched.

A day that is missing all the same must not stop a payment, so a request makes sure of its day
*before* its transaction begins; inside it two healers could deadlock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from idempotency.conf import settings
from idempotency.stores import clock

logger = logging.getLogger("idempotency")

#: The partitioned tables. The order is the order of their locks.
RESPONSES = "idempotency_storedresponse"
EVENTS = "idempotency_keyevent"
PARENTS = (RESPONSES, EVENTS)
#: The comment on the tables we made. Take it off a detached day to keep that day.
MARK = "idempotency: day partition"
#: How long a request waits at most for the right to create its day.
HEAL_LOCK_TIMEOUT = timedelta(milliseconds=500)
#: How long a job waits at most for a lock. Nothing queues behind it meanwhile but other healers.
JOB_LOCK_TIMEOUT = timedelta(seconds=5)
#: How long one statement of a job may take: the look for live keys reads the whole key table.
JOB_STATEMENT_TIMEOUT = timedelta(seconds=60)
#: Seconds until a process that could not create a day tries again.
HEAL_PAUSE = 30.0

#: Whether a key that may still be asked for needs what a day holds. A response is found by the day
#: its key names; the events of an open key are its story.
_NEEDED = {
    RESPONSES: """
        SELECT EXISTS (
            SELECT FROM idempotency_idempotencykey AS k WHERE k.response_day = %(day)s AND {live}
        )
    """,
    EVENTS: """
        SELECT EXISTS (
            SELECT FROM {table} AS e JOIN idempotency_idempotencykey AS k ON k.id = e.key_id
            WHERE {live}
        )
    """,
}
_LIVE = """
    NOT (
        k.state IN ('succeeded', 'failed')
        AND k.expires_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
    )
"""
_PARTITIONS = r"""
    SELECT parent.relname, to_date(right(child.relname, 8), 'YYYYMMDD'),
           link.inhparent IS NOT NULL, coalesce(link.inhdetachpending, false)
    FROM pg_class AS parent
    JOIN pg_class AS child
      ON child.relnamespace = parent.relnamespace AND child.relkind = 'r'
     AND child.relname ~ ('^' || parent.relname || '_p[0-9]{8}$')
     AND obj_description(child.oid, 'pg_class') = %(mark)s
    LEFT JOIN pg_inherits AS link ON link.inhrelid = child.oid
    WHERE parent.oid = ANY (ARRAY[to_regclass(%(responses)s), to_regclass(%(events)s)]::oid[])
      AND (link.inhparent IS NULL OR link.inhparent = parent.oid)
    ORDER BY 1 DESC, 2
"""

_Day = tuple[str, str, date]
_known: set[_Day] = set()
_failed_at: dict[_Day, float] = {}


class Action(StrEnum):
    """What a plan does to a day of one table."""

    CREATE = "create"
    #: Take a detached day back, because a key needs it.
    ATTACH = "attach"
    #: Finish a detach that was cut short.
    FINALIZE = "finalize"
    DETACH = "detach"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """One change to one table; ``str()`` of it is a line of the printed plan."""

    action: Action
    parent: str
    day: date

    @property
    def table(self) -> str:
        return f"{self.parent}_p{self.day:%Y%m%d}"

    def __str__(self) -> str:
        return f"{self.action} {self.table}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step. ``problem`` is empty when it was done."""

    step: Step
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.step}: {self.problem}" if self.problem else str(self.step)


@dataclass(frozen=True, slots=True)
class Partition:
    """A day of one table as the catalogue shows it."""

    parent: str
    day: date
    attached: bool
    #: A DETACH CONCURRENTLY was cut short; new statements do not see the table any more.
    pending: bool


def ensure_day(connection: BaseDatabaseWrapper, day: date) -> None:
    """Make sure that the tables of a day exist. Costs nothing once this process knows the day.

    Never raises for what the database says: without the right to create tables, or when the lock is
    not to be had in time, a warning is logged and the response will go to the newest day there is.
    Does nothing inside a transaction, where healing could deadlock, and on other databases.
    """
    if connection.vendor != "postgresql" or _is_settled(cached := _cache_key(connection, day)):
        return
    try:
        if connection.get_autocommit():
            _heal(connection.alias, day)
            _failed_at.pop(cached, None)
            _known.add(cached)
    except Error as error:
        _failed_at[cached] = time.monotonic()
        logger.warning("could not make sure of the partitions for %s: %s", day, error)


def _is_settled(cached: _Day) -> bool:
    """The day is known, or could not be created a moment ago."""
    return cached in _known or time.monotonic() - _failed_at.get(cached, -HEAL_PAUSE) < HEAL_PAUSE


def _heal(using: str, day: date) -> None:
    created = [parent for parent in PARENTS if _create_day(using, parent, day, HEAL_LOCK_TIMEOUT)]
    if created:
        logger.warning(
            "had to create the partitions for %s (%s): is create_partitions running?",
            day,
            ", ".join(created),
        )


def forget_day(connection: BaseDatabaseWrapper, day: date) -> None:
    """Look again the next time: the day turned out to be missing."""
    _known.discard(_cache_key(connection, day))


def days_ahead(using: str) -> int | None:
    """How many days after today both tables have without a gap; None where there are no partitions.

    Zero means that the first payment after midnight, UTC, has to create its day itself.
    """
    if connections[using].vendor != "postgresql" or not _installed(using):
        return None
    today = database_now(using).date()
    attached = _attached(list_partitions(using))
    ahead = 0
    while all(today + timedelta(days=ahead + 1) in attached[parent] for parent in PARENTS):
        ahead += 1
    return ahead


def plan(using: str, *, create: bool = False, retire: bool = False) -> list[Step]:
    """The steps that would bring the days in order; empty where there are no partitions.

    ``create``: from yesterday, for work that began before midnight, to ``PARTITION_DAYS_AHEAD``
    days from now. ``retire``: days older than ``RETENTION`` that no key needs.
    """
    if connections[using].vendor != "postgresql":
        return []
    with _patient(using):
        now = database_now(using)
        partitions = list_partitions(using)
        steps = _plan_creation(partitions, now.date()) if create else []
        if retire:
            oldest = (now - settings().retention).date()
            for partition in _retirable(partitions, oldest):
                steps += _plan_retirement(using, partition)
    return steps


def apply(using: str, steps: list[Step], *, deadline: float = math.inf) -> list[Outcome]:
    """Carry a plan out. A step that fails stops only those of its own table.

    ``deadline``: by ``time.monotonic()``; no step begins after it. Raises
    TransactionManagementError inside a transaction, where PostgreSQL cannot detach concurrently.
    """
    if not connections[using].get_autocommit():
        raise TransactionManagementError("A partition plan cannot be applied in a transaction.")
    outcomes: list[Outcome] = []
    stuck: set[str] = set()
    with _patient(using):
        for step in steps:
            if time.monotonic() >= deadline:
                problem = "out of time; the next run goes on"
            elif step.table in stuck:
                problem = "an earlier step failed"
            else:
                problem = _apply_step(using, step)
            outcomes.append(Outcome(step, problem))
            if problem:
                stuck.add(step.table)
    return outcomes


def list_partitions(using: str) -> list[Partition]:
    """The days of both tables that bear our comment, detached ones too, the oldest first."""
    with connections[using].cursor() as cursor:
        names = {"mark": MARK, "responses": RESPONSES, "events": EVENTS}
        cursor.execute(_PARTITIONS, names)
        return [Partition(*row) for row in cursor.fetchall()]


def database_now(using: str) -> datetime:
    """The time by the database's clock, in UTC, as the days are cut."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(%s::timestamptz, clock_timestamp())", [clock.frozen()])
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


def _installed(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [RESPONSES])
        installed: bool = cursor.fetchone()[0]
    return installed


def _attached(partitions: list[Partition]) -> dict[str, set[date]]:
    days: dict[str, set[date]] = {parent: set() for parent in PARENTS}
    for partition in partitions:
        if partition.attached and not partition.pending:
            days[partition.parent].add(partition.day)
    return days


def _plan_creation(partitions: list[Partition], today: date) -> list[Step]:
    attached = _attached(partitions)
    wanted = [
        today + timedelta(days=ahead) for ahead in range(-1, settings().partition_days_ahead + 1)
    ]
    return [
        Step(Action.CREATE, parent, day)
        for parent in PARENTS
        for day in wanted
        if day not in attached[parent]
    ]


def _retirable(partitions: list[Partition], oldest: date) -> list[Partition]:
    """Days before ``oldest``, but never the newest attached one of a table: it is where responses
    go when their own day is missing."""
    attached = _attached(partitions)
    return [
        partition
        for partition in partitions
        if partition.day < oldest and partition.day != max(attached[partition.parent], default=None)
    ]


def _plan_retirement(using: str, partition: Partition) -> list[Step]:
    """What to do about a day that is old enough: drop it, or keep it for the key that needs it."""
    drop = Step(Action.DROP, partition.parent, partition.day)
    needed = _needed(using, drop)
    actions: list[Action] = []
    if partition.pending:
        actions.append(Action.FINALIZE)
    elif partition.attached and not needed:
        actions.append(Action.DETACH)
    if not needed:
        actions.append(Action.DROP)
    elif partition.pending or not partition.attached:
        actions.append(Action.ATTACH)
    return [Step(action, partition.parent, partition.day) for action in actions]


def _needed(using: str, step: Step) -> bool:
    with connections[using].cursor() as cursor:
        query = _NEEDED[step.parent].format(table=step.table, live=_LIVE)
        cursor.execute(query, {"day": step.day, "now": clock.frozen()})
        needed: bool = cursor.fetchone()[0]
    return needed


def _apply_step(using: str, step: Step) -> str:
    """Carry one step out. Returns what went wrong, or nothing."""
    try:
        problem = _APPLY[step.action](using, step) or ""
    except Error as error:
        problem = str(error).strip() or type(error).__name__
    if problem:
        logger.warning("could not %s: %s", step, problem)
    else:
        logger.info("partitions: %s", step)
    return problem


def _create(using: str, step: Step) -> None:
    _create_day(using, step.parent, step.day, JOB_LOCK_TIMEOUT)


def _detach(using: str, step: Step) -> None:
    # CONCURRENTLY: a plain DETACH makes every claim and replay queue behind the slowest reader.
    _execute(using, f"ALTER TABLE {step.parent} DETACH PARTITION {step.table} CONCURRENTLY")


def _finalize(using: str, step: Step) -> None:
    _execute(using, f"ALTER TABLE {step.parent} DETACH PARTITION {step.table} FINALIZE")


def _drop(using: str, step: Step) -> str | None:
    """Drop a detached day, unless a key came to need it after the plan was made."""
    with transaction.atomic(using=using):
        if not _needed(using, step):
            _execute(using, f"DROP TABLE {step.table}")
            return None
    _create(using, step)
    return "a key came to need it, so it was attached again"


_APPLY: dict[Action, Callable[[str, Step], str | None]] = {
    Action.CREATE: _create,
    Action.ATTACH: _create,
    Action.FINALIZE: _finalize,
    Action.DETACH: _detach,
    Action.DROP: _drop,
}


def _execute(using: str, statement: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)


def _create_day(using: str, parent: str, day: date, lock_timeout: timedelta) -> bool:
    """Create or attach a day where it is missing, in a transaction of its own. True: it was."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_milliseconds(lock_timeout)])
        cursor.execute("SELECT idempotency_ensure_day_v1(%s, %s)", [parent, day])
        created: bool = cursor.fetchone()[0]
    return created


@contextmanager
def _patient(using: str) -> Iterator[None]:
    """Bounds of the session for a job's statements, which a transaction cannot set for DETACH."""
    bounds = {"lock_timeout": JOB_LOCK_TIMEOUT, "statement_timeout": JOB_STATEMENT_TIMEOUT}
    for name, bound in bounds.items():
        _set(using, name, bound)
    try:
        yield
    finally:
        try:
            for name in bounds:
                _execute(using, f"RESET {name}")
        except Error:
            # A connection in an unknown state must not go on to serve something else.
            connections[using].close()


def _set(using: str, name: str, bound: timedelta) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config(%s, %s, false)", [name, _milliseconds(bound)])


def _milliseconds(duration: timedelta) -> str:
    return f"{duration / timedelta(milliseconds=1):.0f}ms"


def _cache_key(connection: BaseDatabaseWrapper, day: date) -> _Day:
    # The name too: tests point one alias at another database.
    return connection.alias, str(connection.settings_dict["NAME"]), day
