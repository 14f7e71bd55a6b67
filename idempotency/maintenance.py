"""The scheduled jobs: the same code under the Celery tasks and the management commands.

Every job may run at any time, twice at once and with any other: what it writes is as guarded as
what requests write. On PostgreSQL the second run of a job leaves at once all the same, so that the
two do not work on the same rows. Every run is bounded in batches and in time; the next one goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import partial
from typing import NoReturn

from django.db import InterfaceError, OperationalError, connections, router
from django.db.models import DurationField, Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import TruncDate

from idempotency import operations, partitions, signals
from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost, OutcomeInDoubt, OutcomePending
from idempotency.core.states import SETTLED
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import clock, get_store, locks
from idempotency.stores.base import Store

logger = logging.getLogger("idempotency")

#: How long a run goes on before it leaves the rest to the next one.
BUDGET = timedelta(seconds=60)
#: How long an operation rests before a job resumes it for the first time, the second and so on; the
#: last holds for all later ones. A client that asks is not kept waiting by them.
PAUSES = tuple(timedelta(seconds=pause) for pause in (0, 0, 10, 20, 40, 80, 160, 320, 600, 900))


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a job did."""

    job: str
    using: str
    #: Keys failed, operations settled, days created or dropped, rows deleted; with ``dry_run``, how
    #: many it would have been.
    done: int = 0
    #: What went wrong and was logged; none of it kept the rest from being done.
    failed: int = 0
    #: The bound was reached and there is more to do.
    more: bool = False
    #: Another run of the job was at work, so this one did nothing.
    busy: bool = False
    dry_run: bool = False
    #: Lines for people: the plan of a partition job, and what became of it.
    details: tuple[str, ...] = ()


@dataclass(slots=True)
class _Run:
    """A run under way: its bounds and its tally."""

    using: str
    dry_run: bool
    deadline: float
    done: int = 0
    failed: int = 0
    more: bool = False
    details: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return get_store(self.using)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def batches(self) -> Iterator[None]:
        """One turn a batch; reaching the end of it means that there may be more."""
        for _ in range(settings().max_batches):
            if self.out_of_time:
                break
            yield
        self.more = True


def reclaim_expired_leases(using: str | None = None) -> Result:
    """Fail the keys whose owner is gone, so that they expire and their day can be dropped.

    A retry takes such a key over without waiting for this job. Operations past their recovery point
    are left to ``resume_operations``.
    """
    return _run("reclaim_expired_leases", _reclaim, using)


def resume_operations(using: str | None = None) -> Result:
    """Drive abandoned operations to their end, without the client.

    Gives an operation up, IN_DOUBT, after ``RESUME_ATTEMPTS``; with the pauses between them the
    default is about three hours. One operation that fails does not keep the next from running.
    """
    return _run("resume_operations", _resume, using)


def create_partitions(using: str | None = None) -> Result:
    """Create the days ahead, on PostgreSQL."""
    return _run("create_partitions", _create, using)


def drop_expired_partitions(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Drop the days that are older than the retention and that no key needs, on PostgreSQL."""
    return _run("drop_expired_partitions", _drop, using, dry_run)


def prune_expired_keys(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Delete the keys that have expired; without partitions, old responses and events as well.

    Never deletes PROCESSING or IN_DOUBT. A key need not be pruned to be used again.
    """
    return _run("prune_expired_keys", _prune, using, dry_run)


def _run(
    job: str, work: Callable[[_Run], None], using: str | None, dry_run: bool = False
) -> Result:
    alias = using or router.db_for_write(IdempotencyKey)
    with locks.alone(alias, job) as alone:
        if not alone:
            logger.info("%s: another run is at work on %s, so this one leaves", job, alias)
            return Result(job, alias, busy=True, dry_run=dry_run)
        run = _Run(alias, dry_run, deadline=time.monotonic() + BUDGET.total_seconds())
        work(run)
    result = Result(
        job, alias, run.done, run.failed, run.more, dry_run=dry_run, details=tuple(run.details)
    )
    logger.log(logging.INFO if run.done or run.failed else logging.DEBUG, "%s", result)
    return result


def _reclaim(run: _Run) -> None:
    chosen = settings()
    for _ in run.batches():
        reclaimed = run.store.reclaim(
            chosen.ttl, grace=chosen.reclaim_grace, limit=chosen.batch_size
        )
        run.done += reclaimed
        if reclaimed < chosen.batch_size:
            return


def _resume(run: _Run) -> None:
    chosen = settings()
    seen: set[int] = set()
    for _ in run.batches():
        abandoned = run.store.abandoned_operations(
            grace=chosen.reclaim_grace, limit=chosen.batch_size, pauses=PAUSES
        )
        # What is still unknown comes back at once; it gets one try a run.
        batch = [key_id for key_id in abandoned if key_id not in seen]
        if not batch:
            return
        seen.update(batch)
        hopeless = _hopeless(run.using, batch)
        for key_id in batch:
            if run.out_of_time:
                break
            _resume_one(run, key_id, give_up=key_id in hopeless)


def _hopeless(using: str, ids: list[int]) -> set[int]:
    """The operations that the job has resumed often enough. What clients try does not count: one
    may use up twenty attempts within a minute of an outage."""
    tried = IdempotencyKey.objects.using(using).filter(
        pk__in=ids, resumes__gte=settings().resume_attempts
    )
    return set(tried.values_list("pk", flat=True))


def _resume_one(run: _Run, key_id: int, *, give_up: bool) -> None:
    try:
        lease = run.store.take_over(key_id, settings().lease)
        if lease is None:
            return  # completed, or taken over by a retry
        if give_up:
            _give_up(run.store, lease)
        partitions.ensure_day(run.using, lease.response_day)
        operations.resume(run.store, lease)
    except OutcomePending:
        run.details.append(f"{key_id}: still unknown")
        return
    except OutcomeInDoubt:
        run.details.append(f"{key_id}: in doubt")
    except LeaseLost:
        return
    except Exception as error:
        if isinstance(error, (InterfaceError, OperationalError)) and not _reachable(run.using):
            raise
        # Its lease runs out and it is tried again; the next operation must not wait for that.
        logger.exception("could not resume the operation of key %s", key_id)
        run.failed += 1
        return
    run.done += 1


def _reachable(using: str) -> bool:
    connection = connections[using]
    return connection.connection is not None and connection.is_usable()


def _give_up(store: Store, lease: Lease) -> NoReturn:
    store.doubt(lease, f"given up after {lease.attempt - 1} attempts")
    signals.send(
        signals.key_in_doubt,
        operations.Operation,
        digest=lease.digest,
        route=lease.scope.route,
        tenant=lease.scope.tenant,
        attempt=lease.attempt,
    )
    raise OutcomeInDoubt


def _create(run: _Run) -> None:
    _carry_out(run, partitions.plan(run.using, create=True), partitions.Action.CREATE)


def _drop(run: _Run) -> None:
    _carry_out(run, partitions.plan(run.using, retire=True), partitions.Action.DROP)


def _carry_out(run: _Run, steps: list[partitions.Step], counted: partitions.Action) -> None:
    if run.dry_run:
        run.done = sum(step.action is counted for step in steps)
        run.details += [str(step) for step in steps]
    elif steps:
        for outcome in partitions.apply(run.using, steps, deadline=run.deadline):
            run.failed += bool(outcome.problem)
            run.done += outcome.step.action is counted and not outcome.problem
            run.details.append(str(outcome))


def _prune(run: _Run) -> None:
    store, limit = run.store, settings().batch_size
    _walk(run, lambda after: store.prune_expired(limit=limit, after_id=after, dry_run=run.dry_run))
    if connections[run.using].vendor != "postgresql":
        for rows in (StoredResponse.objects.using(run.using), KeyEvent.objects.using(run.using)):
            _walk(run, partial(_prune_old, rows, limit, run.dry_run))


def _walk(run: _Run, prune: Callable[[int], tuple[int, int | None]]) -> None:
    """Walk a table by its primary key. Only batches that deleted something count to the bound:
    behind long-lived keys there may be expired ones."""
    after: int | None = 0
    for _ in run.batches():
        pruned = 0
        while after is not None and not pruned and not run.out_of_time:
            pruned, after = prune(after)
            run.done += pruned
        if after is None:
            return


def _prune_old(
    rows: QuerySet[StoredResponse] | QuerySet[KeyEvent], limit: int, dry_run: bool, after: int
) -> tuple[int, int | None]:
    """What dropping a day does on PostgreSQL: rows older than the retention that no key needs."""
    ids = list(rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:limit])
    if not ids:
        return 0, None
    expired = Q(state__in=[state.value for state in SETTLED], expires_at__lte=clock.now())
    needing = IdempotencyKey.objects.using(rows.db).filter(~expired, pk=OuterRef("key_id"))
    oldest = clock.now() - Value(settings().retention, output_field=DurationField())
    old = rows.filter(~Exists(needing), pk__in=ids, day__lt=TruncDate(oldest, tzinfo=UTC))
    pruned = old.count() if dry_run else old._raw_delete(rows.db)
    return pruned, ids[-1] if len(ids) == limit else None
