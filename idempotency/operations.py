"""Work with an effect outside this database, in three steps that can be resumed by anyone.

::

    prepare   one transaction: write the intent, record the recovery point and a JSON context
    call      no transaction: the outside call, with a downstream key derived from ours
    finalize  one transaction: write the result, store the answer, complete the key

No network inside a transaction, no database inside the call. ``context`` is all that the later
steps get, so a retry, or a job days later in another process, continues where a crash stopped.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections, transaction

from idempotency import partitions, signals, spans
from idempotency.core.decisions import Lease
from idempotency.core.errors import CallNotSent, LeaseLost, OutcomeInDoubt, OutcomePending
from idempotency.core.keys import log_digest
from idempotency.core.policies import Policy, Verdict
from idempotency.core.responses import RecordedResponse
from idempotency.definitions import (
    Amount,
    Done,
    NotSent,
    Operation,
    Outcome,
    Refused,
    Reply,
    Unknown,
    find,
)
from idempotency.kept import Kept, attempt, envelope, finalize
from idempotency.models import EventKind
from idempotency.signals import announce
from idempotency.stores.base import Store
from idempotency.stores.sessions import replace_if_broken
from idempotency.stores.transactions import Transaction, demand_unmarked

__all__ = [
    "PREPARED",
    "Amount",
    "Done",
    "NotSent",
    "Operation",
    "Outcome",
    "Refused",
    "Reply",
    "Unknown",
    "announce",
    "envelope",
    "find",
    "resume",
    "run_prepared",
    "run_without_key",
]

logger = logging.getLogger("idempotency")

PREPARED = "prepared"


def resume(store: Store, lease: Lease) -> RecordedResponse:
    """Continue an operation from its recovery point, for a retry or for the job.

    Raises OutcomePending while the outcome stays unknown, OutcomeInDoubt when calling again could
    repeat the effect, LeaseLost when somebody else has taken over.
    """
    try:
        kept = Kept.read(lease.context or {})
    except ImproperlyConfigured as error:
        # Nobody here can go on, nor say how it ended. Another process may: one of the release that
        # knows the operation, or that has the key to what it keeps.
        logger.error("the operation of %s cannot be read: %s", log_digest(lease.digest), error)
        _suspend(store, lease, "this process cannot read it")
        raise OutcomePending from error
    return _drive(_Open(store, lease, kept), first=False)


def run_prepared(store: Store, lease: Lease, context: dict[str, Any]) -> RecordedResponse:
    """Call and finalize right after ``prepare`` committed, in the attempt that prepared."""
    return _drive(_Open(store, lease, Kept.read(context)), first=True)


def run_without_key(
    operation: Operation,
    prepare: Callable[[Operation], dict[str, Any] | Reply],
    policy: Policy,
    using: str,
) -> RecordedResponse:
    """Run the steps for a request that brought no key where none is required: nothing to recover
    with."""
    with transaction.atomic(using=using):
        context = prepare(operation)
        if isinstance(context, Reply):
            if policy.verdict(context.status) is not Verdict.STORE:
                transaction.set_rollback(True, using=using)
            elif context.status < 400:
                demand_unmarked(connections[using])
            return context.record()
        demand_unmarked(connections[using])
    fresh = type(operation)()
    outcome = attempt(fresh, "call", context, uuid.uuid4().hex)
    if isinstance(outcome, Unknown):
        # An error, for a person to read: no row says so, and no job will look.
        logger.error("%s without a key is in doubt: %s", operation.name, outcome.reason)
        raise OutcomeInDoubt
    if isinstance(outcome, NotSent):
        with transaction.atomic(using=using):
            fresh.withdraw(context)
        raise CallNotSent(retry_after=outcome.retry_after)
    try:
        with Transaction(
            connections[using], f"finalize of {operation.name}", durable=False
        ) as ending:
            recorded = finalize(fresh, context, outcome)
            demand_unmarked(ending.connection)
    except Exception as error:
        # The effect has happened, and nothing says so: "try again" would repeat it.
        logger.exception("%s without a key ended, and its result is not saved", operation.name)
        raise OutcomeInDoubt from error
    return recorded


@dataclass(frozen=True, slots=True)
class _Open:
    """An operation past its recovery point, in the hands of one owner."""

    store: Store
    lease: Lease
    kept: Kept

    @property
    def name(self) -> str:
        return self.kept.operation.name


def _drive(task: _Open, *, first: bool) -> RecordedResponse:
    repeatable = task.kept.is_repeatable(timedelta(0) if first else _age(task))
    if first or repeatable:
        outcome = task.kept.call()
        announce(signals.operation_called, task.lease, outcome=outcome)
    else:
        # An earlier attempt may have made the call, and the other side would make it again.
        outcome = task.kept.look_up()
    if isinstance(outcome, (Done, Refused)):
        return _finalize(task, outcome)
    if isinstance(outcome, NotSent) and first:
        _withdraw(task, outcome)
    # Not sent this time, or not there yet: an earlier attempt may have been sent. Still unknown.
    if not repeatable:
        _doubt(task, outcome.reason if first else f"{_CUT_SHORT}: {outcome.reason}")
    _suspend(task.store, task.lease, outcome.reason)
    raise OutcomePending


_CUT_SHORT = "interrupted at a call that cannot be repeated"


def _age(task: _Open) -> timedelta:
    """How long ago the recovery point was passed; not asked for where it makes no difference."""
    if task.kept.operation.downstream_dedupes_for is None:
        return timedelta(0)
    try:
        return task.store.age_of_recovery_point(task.lease)
    except (DatabaseError, InterfaceError) as error:
        raise OutcomePending from error


@spans.traced("idempotency.complete", lambda task, *_: spans.of_lease(task.lease))
def _finalize(task: _Open, outcome: Done | Refused) -> RecordedResponse:
    try:
        with Transaction(connections[task.store.using], f"finalize of {task.name}") as ending:
            recorded = task.kept.finalize(outcome)
            kept = recorded.within(task.kept.limit)
            day = task.store.complete(task.lease, kept, task.kept.ttl, commit=ending.outermost)
    except LeaseLost:
        raise
    except Exception as error:
        # The effect happened and its result is not saved: whoever resumes gets the same answer from
        # the other side. Telling the caller to start anew here would charge twice.
        _leave(task, error, "finalize")
    if day != task.lease.response_day:
        partitions.forget_day(ending.connection, task.lease.response_day)
    announce(signals.key_completed, task.lease, status=recorded.status)
    return recorded


def _withdraw(task: _Open, outcome: NotSent) -> NoReturn:
    try:
        with Transaction(connections[task.store.using], f"withdraw of {task.name}"):
            task.kept.operation.withdraw(task.kept.context)
            task.store.fail(task.lease, outcome.reason, task.kept.ttl, forget_recovery=True)
            _note(task.store, task.lease, EventKind.WITHDRAWN, outcome.reason)
    except LeaseLost:
        raise
    except Exception as error:
        # The intent is still there, so it is resumed as if the outcome were unknown.
        _leave(task, error, "withdraw")
    announce(signals.key_failed, task.lease, reason=outcome.reason)
    raise CallNotSent(retry_after=outcome.retry_after)


def _doubt(task: _Open, reason: str) -> NoReturn:
    replace_if_broken(task.store.using)
    try:
        task.store.doubt(task.lease, reason)
    except (DatabaseError, InterfaceError) as error:
        # The recovery point stands, and whoever resumes comes to the same end.
        raise OutcomePending from error
    announce(signals.key_in_doubt, task.lease, reason=reason)
    raise OutcomeInDoubt


def _leave(task: _Open, error: Exception, step: str) -> NoReturn:
    """Leave an operation whose step failed to whoever resumes it."""
    ours = _suspend(task.store, task.lease, f"{type(error).__name__} in {step}")
    if not ours and not isinstance(error, (DatabaseError, InterfaceError)):
        # Somebody took over and was faster, so this step found its intent done: no defect.
        raise LeaseLost from error
    logger.error("%s of %s failed", step, task.name, exc_info=error)
    raise OutcomePending from error


def _note(store: Store, lease: Lease, kind: EventKind, reason: str) -> None:
    """For a call that did not end at once. One that did needs no line: the completion tells it."""
    store.note(lease.key_id, kind, lease.attempt, reason=reason)


def _suspend(store: Store, lease: Lease, reason: str) -> bool:
    """End the lease now. False: it is not ours any more."""
    replace_if_broken(store.using)
    try:
        with transaction.atomic(using=store.using):
            store.suspend(lease, reason)
            _note(store, lease, EventKind.SUSPENDED, reason)
        announce(signals.key_suspended, lease, reason=reason)
    except LeaseLost:
        return False
    except (DatabaseError, InterfaceError):
        # Unreachable: the next attempt finds the truth, at the latest when the lease runs out.
        # Suspending only makes that sooner.
        logger.warning("could not suspend %s", log_digest(lease.digest), exc_info=True)
    return True
