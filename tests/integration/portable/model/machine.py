"""A store and the reference are told the same, and have to say the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from idempotency.core.decisions import Claim, Lease, Won
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import clock
from idempotency.stores.base import Seen, Store
from tests.integration.portable.conformance.harness import NOW, OTHER_REQUEST, REQUEST, seconds
from tests.integration.portable.model.reference import (
    FAILED,
    IN_DOUBT,
    NOBODY,
    SUCCEEDED,
    Record,
    Reference,
)

LEASE, TTL = 30, 60
ENDED = RecordedResponse(410, (), b"ended")


class StoreMachine(RuleBasedStateMachine):
    """Owners come and go, also late; jobs and operators meddle; time passes in jumps."""

    store: Store

    @initialize()
    def begin(self) -> None:
        self.reference = Reference()
        self.scope = Scope("POST /things", "acme", uuid.uuid4().hex)
        #: Every lease that was ever won: whoever held one may still write.
        self.leases: list[Lease] = []
        #: What an operator has on his screen.
        self.seen: tuple[Seen, Record, int] | None = None
        self.answers = 0
        clock.freeze(NOW)

    def teardown(self) -> None:
        clock.freeze(None)
        for table in (StoredResponse, KeyEvent, IdempotencyKey):
            table.objects.all()._raw_delete("default")

    # Time

    @rule(by=st.sampled_from([1, LEASE - 1, LEASE, TTL]))
    def wait(self, by: int) -> None:
        self.reference.now += by
        clock.freeze(NOW + seconds(self.reference.now))

    # Claims

    @rule(request=st.sampled_from([REQUEST, REQUEST, OTHER_REQUEST]))
    def claim_one(self, request: bytes) -> None:
        self.claim(request)

    def claim(self, request: bytes) -> None:
        claim = Claim(self.scope, request, 1, uuid.uuid4(), seconds(LEASE))
        held = self.reference.held(request)
        decision = self._do(lambda: self.store.claim(claim))
        if held is not None:
            assert decision == held
            return
        assert isinstance(decision, Won), decision
        record, takeover, reused = self.reference.won(request, LEASE)
        lease = decision.lease
        assert (lease.takeover, lease.reused) == (takeover, reused)
        self._took(lease, record)

    @rule()
    def claim_again(self) -> None:
        """Most requests are retries, so they come more often than one rule in many would."""
        self.claim(REQUEST)

    @rule()
    def look(self) -> None:
        assert self.store.standing(self.scope.digest) == self.reference.standing()

    # Owners, the present one and those that have lost their lease

    @rule(of=st.integers(0, 3))
    def renew(self, of: int) -> None:
        def renewed(record: Record) -> None:
            record.lease_until = self.reference.now + LEASE

        self._as_owner(of, lambda lease: self.store.renew(lease, seconds(LEASE)), renewed)

    @rule(of=st.integers(0, 3))
    def prepare(self, of: int) -> None:
        def prepared(record: Record) -> None:
            record.recovery_point = "prepared"

        def write(lease: Lease) -> None:
            self.store.record_recovery_point(lease, "prepared", {"operation": "o", "prepared": 1})

        self._as_owner(of, write, prepared)

    @rule(of=st.integers(0, 3))
    def complete(self, of: int) -> None:
        self.answers += 1
        answer = RecordedResponse(201, (), str(self.answers).encode())

        def completed(record: Record) -> None:
            self.reference.settle(record, SUCCEEDED, TTL)
            record.answer = answer

        self._as_owner(
            of, lambda lease: self.store.complete(lease, answer, seconds(TTL)), completed
        )

    @rule(of=st.integers(0, 3))
    def release(self, of: int) -> None:
        def released(record: Record) -> None:
            self.reference.record = None

        self._as_owner(of, self.store.release, released, unless=lambda one: one.recovery_point)

    @rule(of=st.integers(0, 3), forget=st.booleans())
    def fail(self, of: int, forget: bool) -> None:
        def failed(record: Record) -> None:
            self.reference.settle(record, FAILED, TTL)
            if forget:
                record.recovery_point = ""

        def write(lease: Lease) -> None:
            self.store.fail(lease, "boom", seconds(TTL), forget_recovery=forget)

        self._as_owner(of, write, failed)

    @rule(of=st.integers(0, 3))
    def suspend(self, of: int) -> None:
        def suspended(record: Record) -> None:
            record.lease_until = self.reference.now

        self._as_owner(of, lambda lease: self.store.suspend(lease, "later"), suspended)

    @rule(of=st.integers(0, 3))
    def doubt(self, of: int) -> None:
        def doubted(record: Record) -> None:
            record.state, record.lease_until = IN_DOUBT, None

        self._as_owner(of, lambda lease: self.store.doubt(lease, "who knows"), doubted)

    # Jobs

    @rule(grace=st.sampled_from([0, 10]))
    def reclaim(self, grace: int) -> None:
        expected = self.reference.reclaim(grace, TTL)
        reclaim = self.store.reclaim
        done = self._do(lambda: reclaim(seconds(TTL), grace=seconds(grace), limit=100))
        assert done == expected

    @rule()
    def resume(self) -> None:
        ids = self.store.abandoned_operations(grace=timedelta(0), limit=100)
        record = self.reference.take_over(LEASE)
        assert len(ids) == (record is not None)
        for key_id in ids:
            assert record is not None
            take_over = partial(self.store.take_over, key_id, seconds(LEASE))
            self._took(self._do(take_over), record)

    @rule()
    def prune(self) -> None:
        expected = self.reference.prune()
        assert self._do(lambda: self.store.prune_expired(limit=100))[0] == expected

    # Operators, who act on what they saw

    @precondition(lambda self: self.reference.record is not None)
    @rule()
    def operator_looks(self) -> None:
        assert self.reference.record is not None
        row = self._row()
        self.seen = Seen.of(row), replace(self.reference.record), row.pk
        if self.seen[1].owner is NOBODY:
            # What the operator sees is a token like any other, as long as it stands.
            self.reference.record.owner = self.seen[1].owner = row.owner

    @precondition(lambda self: self.seen is not None)
    @rule(final=st.booleans())
    def force_fail(self, final: bool) -> None:
        assert self.seen is not None
        seen, record, key_id = self.seen
        response = ENDED if final else None
        expected = self.reference.force_fail(record.owner, TTL, response)
        ended = self._do(
            lambda: self.store.force_fail(
                key_id,
                owner=seen.owner,
                actor="somebody",
                reason="because",
                ttl=seconds(TTL),
                response=response,
            )
        )
        assert ended is expected

    @precondition(lambda self: self.seen is not None)
    @rule(idle=st.booleans())
    def take_over_seen(self, idle: bool) -> None:
        """What settling begins with; the lease then completes, fails or doubts like any other."""
        assert self.seen is not None
        seen, seen_record, key_id = self.seen
        record = self.reference.take_over_seen(seen_record, LEASE, idle=idle)
        take_over = self.store.take_over_seen
        lease = self._do(lambda: take_over(key_id, seen, seconds(LEASE), idle=idle))
        assert (lease is None) == (record is None)
        if record is not None:
            self._took(lease, record)

    # After every step

    @invariant()
    def the_row_is_as_it_should_be(self) -> None:
        rows = list(IdempotencyKey.objects.all())
        record = self.reference.record
        assert len(rows) == (record is not None)
        if record is None:
            return
        [row] = rows
        assert (row.state, row.attempt, bytes(row.fingerprint), row.recovery_point) == (
            record.state,
            record.attempt,
            record.request,
            record.recovery_point,
        )
        assert row.lease_expires_at == self._moment(record.lease_until)
        assert row.expires_at == self._moment(record.expires_at)
        if record.owner is NOBODY:
            assert row.owner not in [lease.owner for lease in self.leases]
        else:
            assert row.owner == record.owner

    # How it is done

    def _as_owner(
        self,
        of: int,
        write: Callable[[Lease], Any],
        then: Callable[[Record], None],
        unless: Callable[[Record], Any] = lambda record: False,
    ) -> None:
        """Write with one of the latest leases; it must be refused exactly when it is lost."""
        if of >= len(self.leases):
            return
        lease = self.leases[-1 - of]
        record = self.reference.owned(lease)
        lost = record is None or unless(record)
        try:
            self._do(lambda: write(lease))
        except LeaseLost:
            assert lost
            return
        assert not lost, "a lease that is lost could write"
        assert record is not None
        then(record)

    def _took(self, lease: Lease, record: Record) -> None:
        assert (lease.attempt, lease.recovery_point) == (record.attempt, record.recovery_point)
        if record.attempt == 1:
            assert lease.key_id not in self.reference.generations, "not a new generation"
            self.reference.generations.add(lease.key_id)
        record.owner = lease.owner
        self.leases.append(lease)

    def _do(self, work: Callable[[], Any]) -> Any:
        # A savepoint: what the database refuses must not end the test's transaction.
        with transaction.atomic():
            return work()

    def _row(self) -> IdempotencyKey:
        return IdempotencyKey.objects.get(digest=self.scope.digest)

    def _moment(self, second: int | None) -> Any:
        return None if second is None else NOW + seconds(second)
