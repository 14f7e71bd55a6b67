"""Operations that nobody is at: finding them, putting them off, taking them over to settle them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from idempotency.core.decisions import Busy, Lease, Replay
from idempotency.core.errors import LeaseLost
from idempotency.core.states import State
from idempotency.models import EventKind
from idempotency.stores.base import Seen, Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    LEASE,
    NOW,
    TTL,
    Key,
    at,
    behind_a_lock,
    seconds,
    together,
    values_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

NOTHING = timedelta(0)


def running(key: Key) -> None:
    """Somebody holds the lease."""
    key.prepared()


def abandoned(key: Key) -> None:
    key.prepared(lease=NOTHING)


def doubted(key: Key) -> None:
    key.store.doubt(key.prepared(), "who knows")


def take(key: Key, seen: Seen, **options: Any) -> Lease | None:
    return key.store.take_over_seen(key.row.pk, seen, LEASE, **options)


# Taking over


@pytest.mark.parametrize("before", [running, abandoned, doubted])
def test_an_open_operation_that_stands_as_it_was_seen_is_taken_over(
    key: Key, before: Callable[[Key], None]
) -> None:
    before(key)
    seen = Seen.of(key.row)

    lease = take(key, seen)

    assert lease is not None
    assert (lease.attempt, lease.recovery_point, lease.context) == (2, "prepared", {"charge": 7})
    assert lease.owner not in (seen.owner, None)
    assert (key.row.state, key.row.lease_expires_at) == (State.PROCESSING, NOW + LEASE)
    assert key.claim() == Busy(LEASE)


def test_a_live_owner_is_fenced_off(key: Key) -> None:
    worker = key.prepared()

    settler = take(key, Seen.of(key.row))

    assert settler is not None
    for write in (
        lambda: key.store.complete(worker, ANSWER, TTL),
        lambda: key.store.fail(worker, "boom", TTL, forget_recovery=True),
        lambda: key.store.suspend(worker, "later"),
        lambda: key.store.doubt(worker, "who knows"),
    ):
        with pytest.raises(LeaseLost), transaction.atomic():
            write()
    key.store.complete(settler, ANSWER, TTL)
    assert key.claim() == Replay(ANSWER)


@pytest.mark.parametrize(
    "other",
    [{"owner": uuid.uuid4()}, {"state": State.IN_DOUBT.value}, {"recovery_point": "called"}],
    ids=["owner", "state", "recovery point"],
)
def test_an_operation_that_stands_otherwise_is_not_taken_over(
    key: Key, other: dict[str, Any]
) -> None:
    key.prepared(lease=NOTHING)
    before = values_of(key.row)

    assert take(key, replace(Seen.of(key.row), **other)) is None
    assert values_of(key.row) == before


def test_neither_a_settled_key_nor_one_without_a_recovery_point_is_taken_over(
    store: Store,
) -> None:
    done, plain = Key(store, "done"), Key(store, "plain")
    store.complete(done.prepared(), ANSWER, TTL)
    plain.won(lease=NOTHING)

    assert take(done, Seen.of(done.row)) is None
    assert take(plain, Seen.of(plain.row)) is None


def test_what_must_be_idle_is_not_taken_from_whoever_holds_it(store: Store) -> None:
    held, over, doubt = Key(store, "held"), Key(store, "over"), Key(store, "doubt")
    running(held)
    abandoned(over)
    doubted(doubt)

    assert take(held, Seen.of(held.row), idle=True) is None
    assert take(over, Seen.of(over.row), idle=True)
    assert take(doubt, Seen.of(doubt.row), idle=True)


@pytest.mark.parametrize("anew", [False, True])
def test_what_the_job_had_used_up_counts_unless_it_is_to_begin_anew(key: Key, anew: bool) -> None:
    first = key.prepared(lease=NOTHING)
    key.store.take_over(first.key_id, NOTHING)
    assert key.row.resumes == 1

    take(key, Seen.of(key.row), anew=anew)

    assert key.row.resumes == (0 if anew else 1)


@pytest.mark.django_db(transaction=True)
def test_of_many_who_saw_the_same_one_takes_it_over(key: Key) -> None:
    doubted(key)
    seen = Seen.of(key.row)

    leases = together(*[lambda: take(key, seen)] * 8)

    assert len([lease for lease in leases if lease]) == 1
    assert key.row.attempt == 2


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_settler_who_waits_for_the_owners_commit_takes_nothing_over(key: Key) -> None:
    worker = key.prepared()
    seen = Seen.of(key.row)

    with behind_a_lock(lambda: take(key, seen)) as settler, transaction.atomic():
        key.store.complete(worker, ANSWER, TTL)
        settler.start()

    assert settler.value is None
    assert key.claim() == Replay(ANSWER)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_an_owner_who_waits_for_the_settlers_commit_has_lost_the_lease(key: Key) -> None:
    worker = key.prepared()

    def complete() -> str:
        try:
            with transaction.atomic():
                key.store.complete(worker, ANSWER, TTL)
        except LeaseLost:
            return "lost"
        return "completed"

    with behind_a_lock(complete) as owner, transaction.atomic():
        take(key, Seen.of(key.row))
        owner.start()

    assert owner.value == "lost"
    assert key.responses() == []


# Telling


def test_who_settled_it_and_why_is_in_the_story_with_the_end(key: Key) -> None:
    doubted(key)
    lease = take(key, Seen.of(key.row))
    assert lease is not None

    key.store.complete(lease, ANSWER, TTL)
    key.store.resolved(lease, actor="ann", reason="asked them", data={"outcome": "done"})

    event = key.events()[-1]
    assert (event.kind, event.actor, event.reason) == (EventKind.RESOLVED, "ann", "asked them")
    assert (event.attempt, event.data) == (2, {"outcome": "done"})


def test_the_story_is_rolled_back_with_the_end(key: Key) -> None:
    doubted(key)
    lease = take(key, Seen.of(key.row))
    assert lease is not None

    def settle() -> None:
        with transaction.atomic():
            key.store.resolved(lease, actor="ann", reason="asked them", data={})
            key.store.complete(replace(lease, owner=uuid.uuid4()), ANSWER, TTL)

    with pytest.raises(LeaseLost):
        settle()
    assert [event.kind for event in key.events()] == [EventKind.IN_DOUBT]


# Finding


def unsettled(store: Store, after: float = 0, limit: int = 10) -> list[str]:
    found = store.unsettled_operations(after=seconds(after), limit=limit)
    return [it.context["what"] for it in found]


def prepared(store: Store, what: str, *, lease: timedelta = NOTHING) -> Key:
    key = Key(store, what)
    store.record_recovery_point(key.won(lease=lease), "prepared", {"what": what})
    return key


def lease_of(key: Key) -> Lease:
    """The lease that the key's row is under."""
    row = key.row
    return Lease(row.pk, row.owner, row.attempt, bytes(row.digest), key.scope, row.response_day)


def test_what_is_open_past_its_recovery_point_and_held_by_nobody_is_found(store: Store) -> None:
    prepared(store, "over")
    doubt = prepared(store, "doubt", lease=LEASE)
    store.doubt(lease_of(doubt), "who knows")
    prepared(store, "held", lease=LEASE)
    Key(store, "plain").won(lease=NOTHING)
    done = prepared(store, "done", lease=LEASE)
    store.complete(lease_of(done), ANSWER, TTL)
    failed = prepared(store, "failed", lease=LEASE)
    store.fail(lease_of(failed), "no", TTL, forget_recovery=True)

    assert unsettled(store) == ["over", "doubt"]
    assert unsettled(store, limit=1) == ["over"]
    assert store.count_unsettled(after=NOTHING) == 3


def test_an_operation_is_found_once_it_is_old_enough(store: Store) -> None:
    with at(NOW - seconds(60)):
        prepared(store, "old")
    prepared(store, "young")

    assert unsettled(store, after=60) == ["old"]
    assert unsettled(store, after=61) == []
    assert store.count_unsettled(after=seconds(60)) == 1
    (found,) = store.unsettled_operations(after=seconds(60), limit=10)
    assert (found.age, found.look_up_at) == (seconds(60), None)
    assert found.seen == Seen.of(Key(store, "old").row)


def test_its_age_counts_from_the_recovery_point_and_not_from_the_first_claim(key: Key) -> None:
    with at(NOW - seconds(60)):
        key.store.fail(key.prepared(), "not sent", TTL, forget_recovery=True)
    lease = key.prepared()

    with at(NOW + seconds(5)):
        assert key.store.age_of_recovery_point(lease) == seconds(5)


# Putting off


def test_what_was_asked_about_is_due_again_at_its_time_and_behind_what_never_was(
    store: Store,
) -> None:
    prepared(store, "asked")
    (asked,) = store.unsettled_operations(after=NOTHING, limit=10)
    prepared(store, "new")

    assert store.look_up_again(asked, NOW + seconds(10))

    assert unsettled(store) == ["new"]
    with at(NOW + seconds(9)):
        assert unsettled(store) == ["new"]
    with at(NOW + seconds(10)):
        assert unsettled(store) == ["new", "asked"]


def test_of_two_who_read_the_same_one_puts_it_off(store: Store) -> None:
    prepared(store, "k")
    for later in (1, 2):
        with at(NOW + seconds(later)):
            (read,) = store.unsettled_operations(after=NOTHING, limit=10)
            assert store.look_up_again(read, NOW + seconds(later + 1))
            assert not store.look_up_again(read, NOW + seconds(60))


def test_what_somebody_is_at_or_what_is_settled_is_not_put_off(store: Store) -> None:
    key = prepared(store, "k")
    (read,) = store.unsettled_operations(after=NOTHING, limit=10)

    lease = store.take_over(key.row.pk, LEASE)
    assert lease is not None
    assert not store.look_up_again(read, NOW)
    store.complete(lease, ANSWER, TTL)
    assert not store.look_up_again(read, NOW)
    assert key.row.look_up_at is None


def test_a_new_intent_is_asked_about_as_one(key: Key) -> None:
    with at(NOW - seconds(60)):
        lease = key.prepared(lease=NOTHING)
        (read,) = key.store.unsettled_operations(after=NOTHING, limit=10)
        key.store.look_up_again(read, NOW + TTL)
        retried = key.store.take_over(lease.key_id, LEASE)
        assert retried is not None
        key.store.fail(retried, "not sent", TTL, forget_recovery=True)
    key.prepared(lease=NOTHING)

    (found,) = key.store.unsettled_operations(after=NOTHING, limit=10)
    assert (found.age, found.look_up_at) == (NOTHING, None)
