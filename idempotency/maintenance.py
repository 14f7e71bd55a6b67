"""The scheduled jobs: the same code under the Celery tasks and the management commands.

Every job may run at any time, twice at once and with any other: what it writes is as guarded as
what requests write. On PostgreSQL the second run of a job leaves at once all the same, so that the
two do not work on the same rows. Every run is bounded in batches and in time; the next one goes on.
"""

from __future__ import annotations

import logging
from datetime import UTC, timedelta
from functools import partial
from typing import NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connections
from django.db.models import DurationField, Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import TruncDate

from idempotency import operations, partitions, signals
from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost, OutcomeInDoubt, OutcomePending
from idempotency.core.states import SETTLED
from idempotency.jobs import Result, Run, reachable, run_job
from idempotency.models import (
    IdempotencyKey,
    KeyEvent,
    Proposal,
    ProposalStatus,
    StoredResponse,
)
from idempotency.stores import clock
from idempotency.stores.base import Store

logger = logging.getLogger("idempotency")

#: How long an operation rests before a job resumes it for the first time, the second and so on; the
#: last holds for all later ones. A client that asks is not kept waiting by them.
PAUSES = tuple(timedelta(seconds=pause) for pause in (0, 0, 10, 20, 40, 80, 160, 320, 600, 900))


def reclaim_expired_leases(using: str | None = None) -> Result:
    """Fail the keys whose owner is gone, so that they expire and their day can be dropped.

    A retry takes such a key over without waiting for this job. Operations past their recovery point
    are left to ``resume_operations``.
    """
    return run_job("reclaim_expired_leases", _reclaim, using)


def resume_operations(using: str | None = None) -> Result:
    """Drive abandoned operations to their end, without the client.

    Gives an operation up, IN_DOUBT, after ``RESUME_ATTEMPTS``; with the pauses between them the
    default is about three hours. One operation that fails does not keep the next from running.
    """
    return run_job("resume_operations", _resume, using)


def create_partitions(using: str | None = None) -> Result:
    """Create the days ahead, on PostgreSQL."""
    return run_job("create_partitions", _create, using)


def drop_expired_partitions(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Drop the days that are older than the retention and that no key needs, on PostgreSQL."""
    return run_job("drop_expired_partitions", _drop, using, dry_run)


def prune_expired_keys(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Delete the keys that have expired; without partitions, old responses and events as well.

    Never deletes PROCESSING or IN_DOUBT. A key need not be pruned to be used again.
    """
    return run_job("prune_expired_keys", _prune, using, dry_run)


def _reclaim(run: Run) -> None:
    chosen = settings()
    for _ in run.batches():
        # The row does not say what TTL its view has. A key that expired sooner than that would take
        # another request, and call under another downstream key; no TTL is above the retention.
        reclaimed = run.store.reclaim(
            chosen.retention, grace=chosen.reclaim_grace, limit=chosen.batch_size
        )
        run.done += reclaimed
        if reclaimed < chosen.batch_size:
            return


def _resume(run: Run) -> None:
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


def _resume_one(run: Run, key_id: int, *, give_up: bool) -> None:
    try:
        lease = run.store.take_over(key_id, settings().lease)
        if lease is None:
            return  # completed, or taken over by a retry
        told = {"takeover": True, "reused": False, "actor": "resume_operations"}
        signals.announce(signals.key_claimed, lease, **told)
        if give_up:
            _give_up(run.store, lease)
        partitions.ensure_day(connections[run.using], lease.response_day)
        operations.resume(run.store, lease)
    except OutcomePending as error:
        run.details.append(f"{key_id}: still unknown")
        run.failed += isinstance(error.__cause__, ImproperlyConfigured)  # told in resume
        return
    except OutcomeInDoubt:
        run.details.append(f"{key_id}: in doubt")
    except LeaseLost:
        return
    except Exception as error:
        if isinstance(error, (InterfaceError, OperationalError)) and not reachable(run.using):
            raise
        # Its lease runs out and it is tried again; the next operation must not wait for that.
        logger.exception("could not resume the operation of key %s", key_id)
        run.failed += 1
        return
    run.done += 1


def _give_up(store: Store, lease: Lease) -> NoReturn:
    reason = f"given up after {lease.attempt - 1} attempts"
    store.doubt(lease, reason)
    signals.announce(signals.key_in_doubt, lease, reason=reason)
    raise OutcomeInDoubt


def _create(run: Run) -> None:
    _carry_out(run, partitions.plan(run.using, create=True), partitions.Action.CREATE)


def _drop(run: Run) -> None:
    _carry_out(run, partitions.plan(run.using, retire=True), partitions.Action.DROP)


def _carry_out(run: Run, steps: list[partitions.Step], counted: partitions.Action) -> None:
    if run.dry_run:
        run.done = sum(step.action is counted for step in steps)
        run.details += [str(step) for step in steps]
    elif steps:
        for outcome in partitions.apply(run.using, steps, deadline=run.deadline):
            run.failed += bool(outcome.problem)
            run.done += outcome.step.action is counted and not outcome.problem
            run.details.append(str(outcome))


def _prune(run: Run) -> None:
    store, limit = run.store, settings().batch_size
    _prune_proposals(run)
    run.walk(lambda after: store.prune_expired(limit=limit, after_id=after, dry_run=run.dry_run))
    if connections[run.using].vendor != "postgresql":
        for rows in (StoredResponse.objects.using(run.using), KeyEvent.objects.using(run.using)):
            run.walk(partial(_prune_old, rows, limit, run.dry_run))


def _prune_proposals(run: Run) -> None:
    """Once nobody can approve it any more, a proposal keeps nothing of the other side's answer; it
    goes with the events of its time."""
    over = Proposal.objects.using(run.using).filter(expires_at__lte=clock.now())
    old = over.filter(created_at__lte=clock.after(-settings().retention))
    if run.dry_run:
        run.done += old.count()
        return
    over.filter(status=ProposalStatus.OPEN).exclude(result={}).update(result={})
    run.done += old._raw_delete(run.using)


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
