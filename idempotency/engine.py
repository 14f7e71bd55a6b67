"""The one place that knows the order of steps: claim, run, complete, announce.

::

    claim ──▶ won ──▶ one transaction: handler, answer, complete ──▶ commit ──▶ announce ──▶ answer
      │        │                         │
      │        │                         └─ raised, or not to be kept: roll back, release/fail
      │        └─ an operation: prepare, call, finalize (operations.py)
      └──▶ held: replay the answer, wait for it, or say why not

The claim commits by itself, before the work's transaction begins: work that rolls back must not
take the record of its attempt along. Completion is part of the work's transaction: there is no
moment at which the one is there and the other is not.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from idempotency import metrics, operations, partitions, signals, spans
from idempotency.admission import Admission
from idempotency.conf import settings
from idempotency.core import fingerprints
from idempotency.core.decisions import (
    Busy,
    Claim,
    Decision,
    InDoubt,
    Lease,
    OtherVersion,
    Replay,
    Won,
)
from idempotency.core.errors import (
    IdempotencyError,
    KeyInUse,
    KeyReused,
    LeaseLost,
    OutcomeInDoubt,
    OutcomePending,
    ResponseNotStored,
    StoreUnavailable,
)
from idempotency.core.keys import Scope, log_digest
from idempotency.core.policies import Policy, Verdict
from idempotency.core.responses import RecordedResponse
from idempotency.execution import Execution
from idempotency.operations import Operation, Reply
from idempotency.stores import get_store
from idempotency.stores.base import Store
from idempotency.stores.sessions import replace_if_broken
from idempotency.stores.transactions import Transaction, demand_unmarked
from idempotency.waiting import Waiter, get_waiter

logger = logging.getLogger("idempotency")

R = TypeVar("R")

#: SQLSTATEs that say "you lost a race; the same statement may work now": serialization failure,
#: deadlock.
LOST_RACE = frozenset({"40001", "40P01"})
#: These too leave no doubt that the transaction was rolled back: lock timeout, statement timeout.
ROLLED_BACK = LOST_RACE | {"55P03", "57014"}
#: What a standby says to a write: after a failover a session may be on what is no primary any more.
READ_ONLY = "25006"
#: Tries of a claim that keeps losing races, with growing jittered pauses of at most these seconds.
CLAIM_TRIES, CLAIM_PAUSE = 4, 0.02


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request under a key: its scope, its policy, its fingerprint in any version, and what
    bounds it."""

    scope: Scope
    policy: Policy
    fingerprint: Callable[[int], bytes]
    admission: Admission = field(default_factory=Admission)


@dataclass(frozen=True, slots=True)
class Handled(Generic[R]):
    """What a handler returned: the framework's response, and the same as it would be kept."""

    response: R
    recorded: RecordedResponse


class Work(Protocol[R]):
    """The handler behind a request, as the engine sees it."""

    def handle(self, execution: Execution | None) -> Handled[R] | Operation:
        """Run the handler and render its answer. Called inside the work's transaction.

        None: the request brought no key.
        """

    def prepare(self, operation: Operation) -> dict[str, Any] | Reply:
        """Run the first step of an operation with the framework's request. Same transaction."""

    def verdict_of(self, error: Exception) -> Verdict:
        """Whether an exception is the caller's mistake (RELEASE) or a failure (FAIL)."""


@dataclass(frozen=True, slots=True)
class Fresh(Generic[R]):
    """The handler ran now. ``response`` is the framework's own."""

    response: R


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer made of bytes: an operation's first one, or a replay."""

    recorded: RecordedResponse
    replayed: bool


class Engine:
    """Runs keyed requests against one store."""

    def __init__(self, store: Store | None = None, waiter: Waiter | None = None) -> None:
        self.store = store or get_store()
        self.waiter = waiter or get_waiter()

    @metrics.timed
    def run(self, request: KeyedRequest, work: Work[R]) -> Fresh[R] | Answer:
        """Answer a request under its key: run it, replay it, or raise the IdempotencyError that
        says why not.

        What the handler raises comes through, after its work was rolled back and its claim dealt
        with.
        """
        connection = connections[self.store.using]
        _refuse_outer_transaction(connection)
        try:
            request.admission.look(self.store, request.scope)
            decision = self._claim_or_wait(request)
            if isinstance(decision, Won):
                return self._run(decision.lease, request, work, connection)
            recorded = _answer(decision)
        except IdempotencyError as error:
            _tell(signals.key_rejected, request.scope, code=error.code)
            raise
        request.admission.refund()
        _tell(signals.key_replayed, request.scope, status=recorded.status)
        return Answer(recorded, replayed=True)

    # Claiming

    def _claim_or_wait(self, request: KeyedRequest) -> Decision:
        decision = self._claim(request)
        if isinstance(decision, Busy) and request.policy.busy == "wait":
            return self._wait(request, decision)
        return decision

    def _wait(self, request: KeyedRequest, decision: Decision) -> Decision:
        until = time.monotonic() + request.policy.wait.total_seconds()
        with self.waiter.watch(request.scope.digest) as watch:
            while isinstance(decision, Busy):
                left = min(until - time.monotonic(), request.admission.time_left)
                if left <= 0:
                    break
                self._let_go_of_connection()
                watch.wait(left)
                decision = self._claim(request)
        return decision

    def _let_go_of_connection(self) -> None:
        """A request that waits needs no connection; a hundred of them would need a hundred. And
        nobody needs one that leads to a standby."""
        connection = connections[self.store.using]
        if not connection.in_atomic_block:
            connection.close()

    @spans.traced("idempotency.claim", lambda engine, request: spans.of_scope(request.scope))
    def _claim(self, request: KeyedRequest) -> Decision:
        request.admission.demand_time()
        decision = self._claim_as(request, fingerprints.CURRENT_VERSION)
        if not isinstance(decision, OtherVersion):
            return decision
        try:
            return self._claim_as(request, decision.fingerprint_version)
        except fingerprints.UnknownVersion as error:
            raise StoreUnavailable(
                "This key was written by a newer release of the service. Repeat with the same key."
            ) from error

    def _claim_as(self, request: KeyedRequest, version: int) -> Decision:
        """Claim with a fingerprint of the given version; lost races are run again, within
        bounds."""
        claim = Claim(
            scope=request.scope,
            fingerprint=request.fingerprint(version),
            fingerprint_version=version,
            owner=uuid.uuid4(),
            lease=request.policy.lease,
        )
        for tried in range(CLAIM_TRIES):
            try:
                return self.store.claim(claim)
            except (OperationalError, InterfaceError, InternalError) as error:
                if isinstance(error, InternalError):
                    if sqlstate(error) != READ_ONLY:
                        raise
                    # It answers, so Django would keep it: the next request finds the primary.
                    self._let_go_of_connection()
                if sqlstate(error) not in LOST_RACE:
                    raise StoreUnavailable from error
                time.sleep(random.uniform(0, CLAIM_PAUSE * 2**tried))  # noqa: S311  jitter
        return Busy(timedelta(0))

    # Running

    def _run(
        self,
        lease: Lease,
        request: KeyedRequest,
        work: Work[R],
        connection: BaseDatabaseWrapper,
    ) -> Fresh[R] | Answer:
        try:
            request.admission.admit_claimed(self.store, lease, request.policy.ttl)
            signals.announce(
                signals.key_claimed, lease, takeover=lease.takeover, reused=lease.reused
            )
            partitions.ensure_day(connection, lease.response_day)
            if lease.recovery_point:
                return Answer(operations.resume(self.store, lease), replayed=False)
            return self._work(lease, request, work, connection)
        finally:
            if request.policy.busy == "wait":
                self.waiter.announce(lease.digest)

    @spans.traced("idempotency.run", lambda engine, lease, *_: spans.of_lease(lease))
    def _work(
        self,
        lease: Lease,
        request: KeyedRequest,
        work: Work[R],
        connection: BaseDatabaseWrapper,
    ) -> Fresh[R] | Answer:
        transaction = Transaction(connection, log_digest(lease.digest))
        attempt = _Attempt(self.store, lease, request, work, transaction)
        try:
            with transaction:
                attempt.run()
        except Exception as error:
            self._rolled_back(attempt, error)
            raise
        return self._ended(attempt)

    def _rolled_back(self, attempt: _Attempt[R], error: Exception) -> None:
        """Deal with the claim of work that was rolled back; raise what the caller should hear
        instead."""
        if isinstance(error, LeaseLost):
            return
        lost = isinstance(error, (OperationalError, InterfaceError))
        if lost and attempt.finished and sqlstate(error) not in ROLLED_BACK:
            # The connection broke at COMMIT: nobody here can know. The row does, and the retry will
            # read it.
            raise OutcomePending from error
        verdict = Verdict.FAIL if lost else attempt.work.verdict_of(error)
        self._end(attempt, verdict, type(error).__name__)
        if lost and attempt.may_have_called:
            raise OutcomePending(
                "The database could not finish the work, and what it called before may have "
                "happened. Repeat with the same key; do not use a new one."
            ) from error
        if lost:
            raise StoreUnavailable(
                "The database could not finish the work and rolled it back, so nothing happened. "
                "Repeat with the same key."
            ) from error

    def _ended(self, attempt: _Attempt[R]) -> Fresh[R] | Answer:
        if attempt.prepared is not None:
            signals.announce(signals.operation_prepared, attempt.lease)
            recorded = operations.run_prepared(self.store, attempt.lease, attempt.prepared)
            return Answer(recorded, replayed=False)
        if attempt.verdict is Verdict.STORE:
            status = attempt.recorded.status
            signals.announce(signals.key_completed, attempt.lease, status=status)
        else:
            self._end(attempt, attempt.verdict, f"answered {attempt.recorded.status}")
        if attempt.response is None:
            return Answer(attempt.recorded, replayed=False)
        return Fresh(attempt.response)

    def _end(self, attempt: _Attempt[R], verdict: Verdict, reason: str) -> None:
        """Release or fail the claim, after the work was rolled back."""
        replace_if_broken(self.store.using)
        try:
            if verdict is Verdict.RELEASE and not attempt.may_have_called:
                self.store.release(attempt.lease)
                signals.announce(signals.key_released, attempt.lease)
            else:
                self.store.fail(attempt.lease, reason, attempt.request.policy.ttl)
                signals.announce(signals.key_failed, attempt.lease, reason=reason)
        except (DatabaseError, InterfaceError, LeaseLost):
            # The work is rolled back either way; at worst the key stays claimed until its lease
            # runs out.
            logger.warning(
                "could not end the claim of %s", log_digest(attempt.lease.digest), exc_info=True
            )


class _Attempt(Generic[R]):
    """One run of the handler inside the work's transaction, and what it came to."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        request: KeyedRequest,
        work: Work[R],
        transaction: Transaction,
    ) -> None:
        self.store, self.lease, self.request, self.work = store, lease, request, work
        self.transaction = transaction
        self.execution = Execution(store, lease, request.policy)
        #: From here on a broken connection leaves open whether the transaction was committed.
        self.finished = False
        self.response: R | None = None
        self.recorded: RecordedResponse
        self.verdict: Verdict = Verdict.STORE
        #: The envelope of an operation that has been prepared; None for atomic work.
        self.prepared: dict[str, Any] | None = None

    @property
    def may_have_called(self) -> bool:
        """Whether a call may have gone out under a key that is derived of this record, which must
        stay then: by this attempt, or by one before it, of which nobody knows."""
        return self.execution.may_have_called or self.lease.attempt > 1

    def run(self) -> None:
        handled = self.work.handle(self.execution)
        if isinstance(handled, Operation):
            self._prepare(handled)
        else:
            self.response, self.recorded = handled.response, handled.recorded
            self._settle()
        self.finished = True

    def _prepare(self, operation: Operation) -> None:
        context = self.work.prepare(operation)
        if isinstance(context, Reply):
            self.recorded = context.record()
            self._settle()
            return
        self.prepared = operations.envelope(operation, context, self.request.policy, self.lease)
        self.store.record_recovery_point(self.lease, operations.PREPARED, self.prepared)

    def _settle(self) -> None:
        """Keep the answer with the work, or roll the work back."""
        connection = self.transaction.connection
        if self.recorded.status < 400:
            demand_unmarked(connection)
        policy = self.request.policy
        self.verdict = policy.verdict(self.recorded.status, rolled_back=connection.get_rollback())
        if self.verdict is not Verdict.STORE:
            connection.set_rollback(True)
            return
        self._complete(policy)

    @spans.traced("idempotency.complete", lambda attempt, *_: spans.of_lease(attempt.lease))
    def _complete(self, policy: Policy) -> None:
        kept = self.recorded.within(policy.max_response_bytes)
        self.finished = True
        day = self.store.complete(self.lease, kept, policy.ttl, commit=self.transaction.outermost)
        if day != self.lease.response_day:
            partitions.forget_day(self.transaction.connection, self.lease.response_day)


def _answer(decision: Decision) -> RecordedResponse:
    """The kept answer, or the error that says why there is none."""
    match decision:
        case Replay(response) if response is not None and response.body is not None:
            return response
        case Replay(response):
            raise ResponseNotStored(resource=None if response is None else response.resource)
        case Busy(lease_left):
            # Waiting longer than the lease has left makes no sense; zero is "not known".
            left = lease_left.total_seconds()
            raise KeyInUse(retry_after=min(settings().retry_after, left) if left else None)
        case InDoubt():
            raise OutcomeInDoubt
        case OtherVersion():
            # It changed between two claims: somebody else just used the key.
            raise KeyInUse
        case _:
            raise KeyReused


def _refuse_outer_transaction(connection: BaseDatabaseWrapper) -> None:
    """A claim inside somebody's transaction would be rolled back with it, and invisible until
    then; and a call of the other side would be made with nothing committed."""
    if not (connection.in_atomic_block or _commits_by_itself(connection)):
        raise RuntimeError(
            "A keyed request cannot run where autocommit is off: its claim has to commit before "
            "the work. Take AUTOCOMMIT out of the settings of this database; code that turns it "
            "off has to turn it on again."
        )
    # As transaction.atomic(durable=True) tells a TestCase's transaction from the user's.
    if connection.in_atomic_block and not getattr(
        connection.atomic_blocks[-1], "_from_testcase", False
    ):
        raise RuntimeError(
            "A keyed request cannot run inside transaction.atomic(): its claim has to commit "
            "before the work. Mark the view @transaction.non_atomic_requests(using=…), or move the "
            "atomic block into the handler."
        )


def _commits_by_itself(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:  # it will be as its settings say
        return bool(connection.settings_dict["AUTOCOMMIT"])
    return connection.autocommit


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error; None when the connection itself broke (or the database has
    none)."""
    return getattr(error.__cause__, "sqlstate", None)


def _tell(signal: Any, scope: Scope, **arguments: Any) -> None:
    signals.send(
        signal, Engine, digest=scope.digest, route=scope.route, tenant=scope.tenant, **arguments
    )
