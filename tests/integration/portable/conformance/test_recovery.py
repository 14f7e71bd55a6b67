"""What jobs and operators do to keys, on every store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.signals import post_delete

from idempotency.core.decisions import Busy, InDoubt, Lease, Mismatch, Replay, Won
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.models import EventKind, IdempotencyKey
from idempotency.stores.base import Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    LEASE,
    NOW,
    OTHER_REQUEST,
    TTL,
    Key,
    at,
    interrupted,
    seconds,
    values_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

NO_GRACE = timedelta(0)
PROBLEM = RecordedResponse(410, (("Content-Type", "application/problem+json"),), b"{}")


def reclaim(store: Store, grace: timedelta = NO_GRACE, limit: int = 100) -> int:
    return store.reclaim(TTL, grace=grace, limit=limit)


# Reclaiming


def test_reclaiming_fails_a_key_whose_lease_is_over_and_fences_its_owner(key: Key) -> None:
    lease = key.won()

    with at(NOW + LEASE):
        assert reclaim(key.store) == 1

    row = key.row
    assert (row.state, row.failure) == (State.FAILED, "lease expired")
    assert row.owner != lease.owner
    assert row.expires_at == NOW + LEASE + TTL
    (event,) = key.events()
    assert (event.kind, event.attempt) == (EventKind.RECLAIMED, 1)
    assert event.data == {"from": str(lease.owner)}
    assert key.won().attempt == 2


def test_case_21_a_reclaimed_key_still_belongs_to_its_request(key: Key) -> None:
    key.won(lease=NO_GRACE)
    reclaim(key.store)

    assert key.claim(OTHER_REQUEST) == Mismatch()


def test_reclaiming_leaves_everything_else_alone(store: Store) -> None:
    Key(store, "running").won()
    Key(store, "done").completed()
    Key(store, "operation").prepared(lease=NO_GRACE)
    store.doubt(Key(store, "doubt").won(lease=NO_GRACE), "who knows")
    before = [values_of(row) for row in IdempotencyKey.objects.order_by("pk")]

    assert reclaim(store) == 0

    assert [values_of(row) for row in IdempotencyKey.objects.order_by("pk")] == before


def test_reclaiming_waits_for_its_grace_and_stops_at_its_limit(store: Store) -> None:
    for name in ("a", "b", "c"):
        Key(store, name).won()

    with at(NOW + LEASE + seconds(9)):
        assert reclaim(store, grace=seconds(10)) == 0
    with at(NOW + LEASE + seconds(10)):
        assert reclaim(store, grace=seconds(10), limit=2) == 2
        assert reclaim(store, grace=seconds(10), limit=2) == 1


# Operations


def test_abandoned_operations_are_found_the_longest_abandoned_first(store: Store) -> None:
    late = Key(store, "late").prepared(lease=seconds(20))
    early = Key(store, "early").prepared(lease=seconds(10))
    Key(store, "running").prepared(lease=seconds(60))
    Key(store, "plain").won(lease=seconds(1))
    store.complete(Key(store, "done").prepared(lease=seconds(1)), ANSWER, TTL)

    with at(NOW + seconds(20)):
        found = store.abandoned_operations(grace=NO_GRACE, limit=10)
        assert found == [early.key_id, late.key_id]
        assert store.abandoned_operations(grace=NO_GRACE, limit=1) == [early.key_id]
        assert store.abandoned_operations(grace=seconds(10), limit=10) == [early.key_id]


def test_an_operation_rests_longer_after_each_attempt(key: Key) -> None:
    lease = key.prepared(lease=NO_GRACE)
    pauses = [NO_GRACE, seconds(10), seconds(60)]

    def abandoned(after: float) -> bool:
        with at(NOW + seconds(after)):
            found = key.store.abandoned_operations(grace=NO_GRACE, limit=10, pauses=pauses)
        return found == [lease.key_id]

    assert abandoned(0)
    assert key.store.take_over(lease.key_id, NO_GRACE)
    assert (abandoned(9), abandoned(10)) == (False, True)
    # What a client tries does not count.
    key.won(lease=NO_GRACE)
    assert (abandoned(9), abandoned(10)) == (False, True)
    for _ in range(3):
        assert key.store.take_over(lease.key_id, NO_GRACE)
        assert (abandoned(59), abandoned(60)) == (False, True)


def test_taking_over_an_abandoned_operation_continues_it(key: Key) -> None:
    first = key.prepared(lease=NO_GRACE)

    lease = key.store.take_over(first.key_id, LEASE)

    assert lease is not None
    assert (lease.key_id, lease.attempt, lease.takeover) == (first.key_id, 2, True)
    assert (lease.recovery_point, lease.context) == ("prepared", {"charge": 7})
    assert lease.scope.key == "k"
    assert lease.owner != first.owner
    assert key.claim() == Busy(LEASE)
    assert [event.kind for event in key.events()] == [EventKind.TAKEOVER]


def test_only_an_abandoned_operation_is_taken_over(store: Store) -> None:
    leases = [
        Key(store, "running").prepared(),
        Key(store, "plain").won(lease=NO_GRACE),
        Key(store, "done").completed(),
    ]

    assert [store.take_over(lease.key_id, LEASE) for lease in leases] == [None] * 3
    assert store.take_over(-1, LEASE) is None


# Operators


def force_fail(key: Key, owner: Any, response: RecordedResponse | None = None) -> bool:
    return key.store.force_fail(
        key.row.pk, owner=owner, actor="ann", reason="stuck", ttl=TTL, response=response
    )


@pytest.mark.parametrize("doubt", [False, True], ids=["processing", "in_doubt"])
def test_a_force_failed_key_is_free_for_its_own_request(key: Key, doubt: bool) -> None:
    lease = key.won()
    if doubt:
        key.store.doubt(lease, "who knows")

    assert force_fail(key, lease.owner)

    row = key.row
    assert (row.state, row.failure, row.expires_at) == (State.FAILED, "stuck", NOW + TTL)
    assert row.owner != lease.owner
    event = key.events()[-1]
    assert (event.kind, event.actor, event.reason) == (EventKind.FORCE_FAILED, "ann", "stuck")
    assert event.data == {"from": str(lease.owner), "final": False}
    assert key.claim(OTHER_REQUEST) == Mismatch()
    assert isinstance(key.claim(), Won)


@pytest.mark.parametrize("doubt", [False, True], ids=["processing", "in_doubt"])
def test_a_force_failed_operation_is_left_to_the_job_and_never_counts_as_unused(
    key: Key, doubt: bool
) -> None:
    lease = key.prepared()
    if doubt:
        key.store.doubt(lease, "who knows")

    assert force_fail(key, lease.owner)

    row = key.row
    assert (row.state, row.failure, row.expires_at) == (State.PROCESSING, "stuck", None)
    assert row.owner != lease.owner
    assert key.store.abandoned_operations(grace=NO_GRACE, limit=10) == [row.pk]
    with at(NOW + timedelta(days=365)):
        resumed = key.won()
    assert (resumed.key_id, resumed.context) == (lease.key_id, row.context)


def test_a_force_failed_key_with_an_answer_replays_it(key: Key) -> None:
    lease = key.won()

    with at(NOW + timedelta(days=1)):
        assert force_fail(key, lease.owner, PROBLEM)
        assert key.claim() == Replay(PROBLEM)

    row = key.row
    assert (row.state, row.lease_expires_at, row.failure) == (State.SUCCEEDED, None, "stuck")
    assert row.response_day == (NOW + timedelta(days=1)).date()
    assert key.events()[-1].data == {"from": str(lease.owner), "final": True}


def test_an_operator_who_saw_an_older_attempt_ends_nothing(key: Key) -> None:
    seen = key.won(lease=NO_GRACE).owner
    key.won()
    before = values_of(key.row)

    assert not force_fail(key, seen)
    assert not force_fail(key, uuid.uuid4())
    assert values_of(key.row) == before


def test_a_settled_key_cannot_be_force_failed(store: Store) -> None:
    done, failed = Key(store, "done"), Key(store, "failed")
    store.fail(failed.won(), "boom", TTL)
    done.completed()

    assert not force_fail(done, done.row.owner)
    assert not force_fail(failed, failed.row.owner)
    assert done.claim() == Replay(ANSWER)


# Pruning


def test_pruning_deletes_what_has_expired_and_nothing_else(store: Store) -> None:
    Key(store, "done").completed(ttl=seconds(10))
    store.fail(Key(store, "failed").won(), "boom", seconds(10))
    fresh = Key(store, "fresh")
    fresh.completed(ttl=seconds(11))

    with at(NOW + seconds(9)):
        assert store.prune_expired(limit=10) == (0, None)
    with at(NOW + seconds(10)):
        assert store.prune_expired(limit=10, dry_run=True) == (2, None)
        assert IdempotencyKey.objects.count() == 3
        assert store.prune_expired(limit=10) == (2, None)

    assert [row.key for row in IdempotencyKey.objects.all()] == ["fresh"]


def test_case_52_what_runs_or_is_in_doubt_is_never_pruned(store: Store) -> None:
    running, doubt = Key(store, "running"), Key(store, "doubt")
    running.won(lease=seconds(1))
    store.doubt(doubt.won(), "who knows")

    with at(NOW + timedelta(days=400)):
        assert store.prune_expired(limit=10) == (0, None)
        assert doubt.claim() == InDoubt()
        assert running.won().takeover


def test_case_52_a_handler_that_outlives_the_ttl_loses_nothing(key: Key) -> None:
    lease = key.won()

    with at(NOW + TTL * 3):
        assert key.store.prune_expired(limit=10) == (0, None)
        key.store.complete(lease, ANSWER, TTL)
        assert key.store.prune_expired(limit=10) == (0, None)
        assert key.claim() == Replay(ANSWER)


def test_pruning_walks_the_table_in_batches(store: Store) -> None:
    for number in range(5):
        # Every other one stays.
        Key(store, str(number)).completed(ttl=seconds(10) if number % 2 else TTL)

    with at(NOW + seconds(10)):
        walked, after, deleted = 0, 0, 0
        while True:
            pruned, following = store.prune_expired(limit=2, after_id=after)
            deleted += pruned
            walked += 1
            if following is None:
                break
            assert following > after
            after = following

    assert (walked, deleted) == (3, 2)
    assert [row.key for row in IdempotencyKey.objects.order_by("pk")] == ["0", "2", "4"]


@pytest.mark.django_db(transaction=True)
def test_case_51_a_key_reused_while_it_is_pruned_survives(key: Key) -> None:
    key.completed(ttl=seconds(1))
    leases: list[Lease] = []

    with at(NOW + seconds(1)):
        with interrupted(key.store.using, lambda: leases.append(key.won())) as statements:
            key.store.prune_expired(limit=10)

        assert statements[-1].startswith("DELETE")
        assert key.row.pk == leases[0].key_id
        key.store.complete(leases[0], ANSWER, TTL)
        assert key.claim() == Replay(ANSWER)


@contextmanager
def somebody_listening() -> Iterator[None]:
    """A receiver of every model's deletions, as audit apps have it."""

    def receiver(**_: Any) -> None:
        """QuerySet.delete() reads first and deletes by id alone as soon as there is one."""

    post_delete.connect(receiver)
    try:
        yield
    finally:
        post_delete.disconnect(receiver)


def test_releasing_and_pruning_keep_their_guards_while_somebody_listens_to_deletions(
    store: Store, django_assert_num_queries: Any
) -> None:
    lease = Key(store, "released").won()
    Key(store, "pruned").completed(ttl=NO_GRACE)

    with somebody_listening():
        with django_assert_num_queries(1):
            store.release(lease)
        with django_assert_num_queries(2):
            assert store.prune_expired(limit=10) == (1, None)


# Looking up


def test_keys_are_found_by_their_digests_newest_first(store: Store) -> None:
    old, new, stranger = Key(store, "old"), Key(store, "new"), Key(store, "stranger")
    old.completed()
    stranger.won()
    with at(NOW + seconds(1)):
        new.won()

    found = store.find([old.scope.digest, new.scope.digest, b"0" * 32])

    assert [(record.key, record.state) for record in found] == [
        ("new", State.PROCESSING),
        ("old", State.SUCCEEDED),
    ]
    assert [record.response for record in found] == [None, ANSWER]
    assert (found[1].created_at, found[1].expires_at) == (NOW, NOW + TTL)
    assert store.find([]) == []
