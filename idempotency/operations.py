"""Work with an effect outside this database, in three steps that can be resumed by anyone.

::

    prepare   one transaction: write the intent, record the recovery point and a JSON context
    call      no transaction: the outside call, with a downstream key derived from ours
    finalize  one transaction: write the result, store the answer, complete the key

No network inside a transaction, no database inside the call. ``context`` is all that the later
steps get, so a retry, or a job days later in another process, continues where a crash stopped.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError, transaction

from idempotency import partitions, signals
from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.errors import CallNotSent, LeaseLost, OutcomeInDoubt, OutcomePending
from idempotency.core.keys import derive_downstream_key, log_digest
from idempotency.core.policies import Policy, Verdict
from idempotency.core.responses import WITHOUT_BODY, RecordedResponse, stored_headers
from idempotency.stores.base import Store
from idempotency.stores.sessions import Commit, replace_if_broken

logger = logging.getLogger("idempotency")

PREPARED = "prepared"


@dataclass(frozen=True, slots=True)
class Done:
    """The outside effect happened. ``result`` is what finalize needs of the answer."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side said no, for good: a declined card. Nothing happened there and nothing
    will."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotSent:
    """The call certainly had no effect: no connection, or refused before it was looked at."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell from here whether the effect happened."""

    reason: str


Outcome = Done | Refused | NotSent | Unknown


@dataclass(frozen=True, slots=True)
class Reply:
    """An operation's answer, always JSON: a job that finishes it has no request to negotiate
    with."""

    status: int
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    def record(self) -> RecordedResponse:
        """The answer as bytes, equal whoever makes them."""
        headers = stored_headers(self.headers.items())
        if self.status in WITHOUT_BODY:
            return RecordedResponse(self.status, headers, b"")
        body = json.dumps(self.data, cls=DjangoJSONEncoder, separators=(",", ":")).encode()
        return RecordedResponse(self.status, (("Content-Type", self.content_type), *headers), body)


class Operation:
    """Subclass, give it a ``name`` that never changes, and return an instance from the view's
    handler.

    Keyword arguments given to the constructor are ``self.arguments`` in ``prepare``; the later
    steps run on a fresh instance, so that a first run and a resumed one cannot differ.
    """

    #: Stored with the key, to find the class again: renaming it strands the operations that are
    #: open.
    name: ClassVar[str]
    #: The outside service; part of the downstream key.
    service: ClassVar[str] = ""
    #: Whether the other side answers a repeated downstream key with the first effect. When it does
    #: not, an unknown outcome is in doubt: calling again could charge twice.
    downstream_dedupes: ClassVar[bool] = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name is None:
            return
        known = _registry.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ImproperlyConfigured(f"Two operations are named {name!r}: {known} and {cls}.")
        _registry[name] = cls

    def prepare(self, request: Any) -> dict[str, Any] | Reply:
        """Write the intent and return the context, JSON-able; or a Reply, to end here and store
        that.

        Runs in one transaction. What it raises rolls back: a client error releases the key.
        """
        raise NotImplementedError

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        """Make the outside call under ``key``. Must be bounded in time, well below the lease.

        Runs outside any transaction. An exception counts as Unknown.
        """
        raise NotImplementedError

    def finalize(self, context: dict[str, Any], outcome: Done | Refused) -> Reply:
        """Write the result and make the answer, in the transaction that completes the key.

        May run again after a crash: write only what is conditional on the intent's state.
        """
        raise NotImplementedError

    def withdraw(self, context: dict[str, Any]) -> None:
        """Undo the intent, because the call was certainly not sent. Runs in one transaction."""


_registry: dict[str, type[Operation]] = {}


def find(name: str) -> type[Operation] | None:
    """The operation of that name; None when this process knows none."""
    return _registry.get(name)


def resume(store: Store, lease: Lease) -> RecordedResponse:
    """Continue an operation from its recovery point, for a retry or for the job.

    Raises OutcomePending while the outcome stays unknown, OutcomeInDoubt when calling again could
    repeat the effect, LeaseLost when somebody else has taken over.
    """
    return _drive(store, lease, lease.context or {}, first=False)


def run_prepared(store: Store, lease: Lease, context: dict[str, Any]) -> RecordedResponse:
    """Call and finalize right after ``prepare`` committed, in the attempt that prepared."""
    return _drive(store, lease, context, first=True)


def envelope(
    operation: Operation, context: Any, policy: Policy, attempt: int = 1
) -> dict[str, Any]:
    """What is kept at the recovery point: enough to continue without the request and its policy.

    ``attempt``: the one that prepared, which is part of the downstream key. An intent that was
    withdrawn, because its call was certainly not sent, and prepared anew is another intent: its
    call may differ, and the other side would refuse it under the key of the first.
    """
    if not isinstance(context, dict):
        raise TypeError(f"prepare of {operation.name} returned {type(context).__name__}, no dict.")
    return {
        "operation": operation.name,
        "ttl": policy.ttl.total_seconds(),
        "limit": policy.max_response_bytes,
        "prepared": attempt,
        "context": context,
    }


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
            return context.record()
    fresh = type(operation)()
    outcome = _outcome(fresh, context, uuid.uuid4().hex)
    if isinstance(outcome, Unknown):
        # An error, for a person to read: no row says so, and no job will look.
        logger.error("%s without a key is in doubt: %s", operation.name, outcome.reason)
        raise OutcomeInDoubt
    with transaction.atomic(using=using):
        if not isinstance(outcome, NotSent):
            return fresh.finalize(context, outcome).record()
        fresh.withdraw(context)
    raise CallNotSent(retry_after=outcome.retry_after)


@dataclass(frozen=True, slots=True)
class _Open:
    """An operation past its recovery point, in the hands of one owner."""

    store: Store
    lease: Lease
    operation: Operation
    context: dict[str, Any]
    ttl: timedelta
    limit: int
    #: The attempt that prepared the intent.
    prepared: int


def _drive(store: Store, lease: Lease, kept: dict[str, Any], *, first: bool) -> RecordedResponse:
    ttl = timedelta(seconds=kept["ttl"])
    operation = _find(kept["operation"])
    task = _Open(store, lease, operation, kept["context"], ttl, kept["limit"], kept["prepared"])
    if not first and not task.operation.downstream_dedupes:
        # An earlier attempt may have made the call, and the other side would make it again.
        _doubt(task, "interrupted at a call that cannot be repeated")
    outcome = _call(task)
    _tell(signals.operation_called, lease, outcome=outcome)
    if isinstance(outcome, (Done, Refused)):
        return _finalize(task, outcome)
    if isinstance(outcome, NotSent) and first:
        _withdraw(task, outcome)
    # Not sent this time, but an earlier attempt may have been: still unknown.
    if not task.operation.downstream_dedupes:
        _doubt(task, outcome.reason)
    _suspend(task, outcome.reason)
    raise OutcomePending


def _find(name: str) -> Operation:
    try:
        return _registry[name]()
    except KeyError:
        raise ImproperlyConfigured(
            f"Operation {name!r} is not known to this process. Define it in an `operations` module "
            "of an installed app, under the name it had."
        ) from None


def _call(task: _Open) -> Outcome:
    operation = task.operation
    step = f"call {task.prepared}"
    key = derive_downstream_key(
        settings().secret_bytes, task.lease.key_id, operation.service, operation.name, step
    )
    return _outcome(operation, task.context, key)


def _outcome(operation: Operation, context: dict[str, Any], key: str) -> Outcome:
    try:
        outcome: object = operation.call(context, key)
    except Exception as error:
        # Whatever it was, the call may have gone out before it: that is what Unknown means.
        logger.exception("the call of %s raised", operation.name)
        return Unknown(f"{type(error).__name__} in the call")
    if not isinstance(outcome, Outcome):
        logger.error("the call of %s returned %s, no outcome", operation.name, type(outcome))
        return Unknown(f"the call returned {type(outcome).__name__}")
    return outcome


def _finalize(task: _Open, outcome: Done | Refused) -> RecordedResponse:
    commit = Commit(task.store.using)
    try:
        with transaction.atomic(using=task.store.using, durable=True):
            commit.watch()
            recorded = _final(task.operation.finalize(task.context, outcome))
            day = task.store.complete(task.lease, recorded.within(task.limit), task.ttl)
    except LeaseLost:
        raise
    except Exception as error:
        # The effect happened and its result is not saved: whoever resumes gets the same answer from
        # the other side. Telling the caller to start anew here would charge twice.
        if not commit.happened:
            _leave(task, error, "finalize")
        logger.exception("a hook after finalize of %s failed", task.operation.name)
    if day != task.lease.response_day:
        partitions.forget_day(task.store.using, task.lease.response_day)
    _tell(signals.key_completed, task.lease, status=recorded.status)
    return recorded


def _final(reply: Reply) -> RecordedResponse:
    if reply.status >= 500:
        raise ValueError(f"finalize answered {reply.status}, which cannot be an outcome.")
    return reply.record()


def _withdraw(task: _Open, outcome: NotSent) -> NoReturn:
    commit = Commit(task.store.using)
    try:
        with transaction.atomic(using=task.store.using, durable=True):
            commit.watch()
            task.operation.withdraw(task.context)
            task.store.fail(task.lease, outcome.reason, task.ttl, forget_recovery=True)
    except LeaseLost:
        raise
    except Exception as error:
        # The intent is still there, so it is resumed as if the outcome were unknown.
        if not commit.happened:
            _leave(task, error, "withdraw")
        logger.exception("a hook after withdraw of %s failed", task.operation.name)
    _tell(signals.key_failed, task.lease, reason=outcome.reason)
    raise CallNotSent(retry_after=outcome.retry_after)


def _doubt(task: _Open, reason: str) -> NoReturn:
    replace_if_broken(task.store.using)
    try:
        task.store.doubt(task.lease, reason)
    except (DatabaseError, InterfaceError) as error:
        # The recovery point stands, and whoever resumes comes to the same end.
        raise OutcomePending from error
    _tell(signals.key_in_doubt, task.lease)
    raise OutcomeInDoubt


def _leave(task: _Open, error: Exception, step: str) -> NoReturn:
    """Leave an operation whose step failed to whoever resumes it."""
    ours = _suspend(task, f"{type(error).__name__} in {step}")
    if not ours and not isinstance(error, (DatabaseError, InterfaceError)):
        # Somebody took over and was faster, so this step found its intent done: no defect.
        raise LeaseLost from error
    logger.error("%s of %s failed", step, task.operation.name, exc_info=error)
    raise OutcomePending from error


def _suspend(task: _Open, reason: str) -> bool:
    """End the lease now. False: it is not ours any more."""
    replace_if_broken(task.store.using)
    try:
        task.store.suspend(task.lease, reason)
    except LeaseLost:
        return False
    except (DatabaseError, InterfaceError):
        # Unreachable: the next attempt finds the truth, at the latest when the lease runs out.
        # Suspending only makes that sooner.
        digest = log_digest(task.lease.digest)
        logger.warning("could not suspend %s", digest, exc_info=True)
    return True


def _tell(signal: Any, lease: Lease, **arguments: Any) -> None:
    signals.send(
        signal,
        Operation,
        digest=lease.digest,
        route=lease.scope.route,
        tenant=lease.scope.tenant,
        attempt=lease.attempt,
        **arguments,
    )
