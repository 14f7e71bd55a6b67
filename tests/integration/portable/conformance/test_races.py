"""Stores under concurrency: barriers and pauses between statements, never sleeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from idempotency.core.decisions import Busy, Decision, Lease, Mismatch, Replay, Won
from idempotency.core.errors import LeaseLost
from idempotency.core.states import State
from idempotency.stores.base import Store
from idempotency.stores.database import DatabaseStore
from tests.integration.portable.conformance.harness import (
    ANSWER,
    CLAIMABLE,
    LEASE,
    OTHER_REQUEST,
    TTL,
    Key,
    behind_a_lock,
    elsewhere,
    interrupted,
    together,
    values_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

CLAIMANTS = 8


def kinds(decisions: list[Decision]) -> Counter[str]:
    return Counter(type(decision).__name__ for decision in decisions)


def winner(decisions: list[Decision]) -> Lease:
    (lease,) = (decision.lease for decision in decisions if isinstance(decision, Won))
    return lease


# Claims against claims


@pytest.mark.parametrize("before", CLAIMABLE)
def test_case_29_one_of_many_simultaneous_claims_wins(
    key: Key, before: Callable[[Key], None]
) -> None:
    before(key)

    decisions = together(*[key.claim] * CLAIMANTS)

    assert kinds(decisions) == {"Won": 1, "Busy": CLAIMANTS - 1}
    assert key.row.owner == winner(decisions).owner
    key.store.complete(winner(decisions), ANSWER, TTL)
    assert key.claim() == Replay(ANSWER)


def test_case_30_many_keys_at_once_are_no_hindrance_to_each_other(store: Store) -> None:
    decisions = together(*[Key(store, str(number)).claim for number in range(CLAIMANTS)])

    assert kinds(decisions) == {"Won": CLAIMANTS}


def test_case_20_the_losers_of_a_race_with_another_request_hear_that_it_is_another(
    key: Key,
) -> None:
    decisions = together(*[lambda: key.claim(OTHER_REQUEST)] * 3, *[key.claim] * 3)

    assert kinds(decisions) == {"Won": 1, "Busy": 2, "Mismatch": 3}


@pytest.mark.parametrize("before", CLAIMABLE[1:])
def test_a_portable_claim_interrupted_between_reading_and_writing_looks_again(
    before: Callable[[Key], None],
) -> None:
    key = Key(DatabaseStore("default"))
    before(key)
    winners: list[Lease] = []

    with interrupted(key.store.using, lambda: winners.append(key.won())):
        decision = key.claim()

    assert isinstance(decision, Busy)
    assert key.row.owner == winners[0].owner


def test_a_portable_takeover_names_the_owner_it_really_took_over_from() -> None:
    key = Key(DatabaseStore("default"))
    key.won(lease=timedelta(0))

    with interrupted("default", lambda: key.won(lease=timedelta(0))):
        last = key.won()

    first_event, second_event = key.events()
    assert second_event.data == {"from": first_event.data["to"], "to": str(last.owner)}


# Claims against owners


def test_a_portable_claim_interrupted_by_the_owners_renewal_is_busy() -> None:
    key = Key(DatabaseStore("default"))
    lease = key.won(lease=timedelta(0))

    with interrupted("default", lambda: key.store.renew(lease, LEASE)):
        decision = key.claim()

    assert isinstance(decision, Busy)
    assert key.row.owner == lease.owner


@pytest.mark.postgresql
def test_a_takeover_that_waits_for_the_owners_renewal_is_busy(key: Key) -> None:
    lease = key.won(lease=timedelta(0))

    with behind_a_lock(key.claim) as result, transaction.atomic():
        key.store.renew(lease, LEASE)
        result.start()

    assert isinstance(result.value, Busy)
    assert key.row.owner == lease.owner


@pytest.mark.postgresql
def test_a_takeover_that_waits_for_the_owners_commit_gets_the_answer(key: Key) -> None:
    lease = key.won(lease=timedelta(0))

    with behind_a_lock(key.claim) as result, transaction.atomic():
        key.store.complete(lease, ANSWER, TTL)
        result.start()

    assert result.value == Replay(ANSWER)


@pytest.mark.postgresql
def test_a_takeover_that_waits_for_an_owner_who_rolls_back_wins(key: Key) -> None:
    lease = key.won(lease=timedelta(0))

    with behind_a_lock(key.claim) as result, transaction.atomic():
        key.store.complete(lease, ANSWER, TTL)
        result.start()
        transaction.set_rollback(True)

    assert isinstance(result.value, Won)
    with pytest.raises(LeaseLost):
        key.store.complete(lease, ANSWER, TTL)


@pytest.mark.postgresql
def test_case_39_an_owner_that_wakes_after_a_takeover_rolls_back(key: Key) -> None:
    """The completion waits for the takeover's commit, and then finds itself fenced."""
    lease = key.won(lease=timedelta(0))

    def complete() -> Any:
        with transaction.atomic(), pytest.raises(LeaseLost):
            key.store.complete(lease, ANSWER, TTL)

    with behind_a_lock(complete) as result, transaction.atomic():
        taken = key.won()
        result.start()

    assert (key.row.owner, key.responses()) == (taken.owner, [])


@pytest.mark.parametrize("settle", ["complete", "renew", "doubt"])
def test_case_40_a_reclaimer_paused_before_its_write_changes_nothing(key: Key, settle: str) -> None:
    lease = key.won(lease=timedelta(0))
    settling = {
        "complete": lambda: key.store.complete(lease, ANSWER, TTL),
        "renew": lambda: key.store.renew(lease, LEASE),
        "doubt": lambda: key.store.doubt(lease, "who knows"),
    }
    settled: list[Any] = []

    def let_the_owner_settle() -> None:
        settling[settle]()
        settled.append(values_of(key.row))

    with interrupted(key.store.using, let_the_owner_settle) as statements:
        assert key.store.reclaim(TTL, grace=timedelta(0), limit=10) == 0

    assert any(statement.startswith("UPDATE") for statement in statements)
    assert [values_of(key.row)] == settled


def test_case_40_a_job_paused_before_it_takes_an_operation_over_changes_nothing(key: Key) -> None:
    lease = key.prepared(lease=timedelta(0))
    complete = lambda: key.store.complete(lease, ANSWER, TTL)  # noqa: E731

    with interrupted(key.store.using, complete):
        assert key.store.take_over(lease.key_id, LEASE) is None

    assert key.claim() == Replay(ANSWER)


def test_a_claim_and_the_reclaim_job_never_both_get_a_key(key: Key) -> None:
    key.won(lease=timedelta(0))

    reclaimed, decision = together(
        lambda: key.store.reclaim(TTL, grace=timedelta(0), limit=10), key.claim
    )

    # In either order the claim ends with the key; the job may have been first.
    assert isinstance(decision, Won)
    assert key.row.owner == decision.lease.owner
    assert (key.row.state, decision.lease.takeover) == (State.PROCESSING, not reclaimed)


def test_case_51_pruning_and_claiming_an_expired_key_run_it_once(store: Store) -> None:
    keys = [Key(store, str(number)) for number in range(10)]
    for key in keys:
        key.completed(ttl=timedelta(0))

    def claim_all() -> list[Decision]:
        return [key.claim() for key in keys]

    def prune() -> list[Decision]:
        store.prune_expired(limit=100)
        return []

    first, second, _, _ = together(claim_all, claim_all, prune, prune)

    for key, decisions in zip(keys, zip(first, second, strict=True), strict=True):
        assert kinds(list(decisions)) == {"Won": 1, "Busy": 1}
        assert key.row.owner == winner(list(decisions)).owner


def test_case_57_force_failing_while_the_owner_runs_refuses_its_completion(key: Key) -> None:
    lease = key.won()

    def work() -> None:
        with transaction.atomic():
            Key(key.store, "the work").won()
            # SQLite has one writer, which the work is: there the operator has to come before it.
            sqlite = connection.vendor == "sqlite"
            (_force_fail if sqlite else in_another_session)(key, lease)
            key.store.complete(lease, ANSWER, TTL)

    def in_another_session(key: Key, lease: Lease) -> None:
        elsewhere(lambda: _force_fail(key, lease))

    with pytest.raises(LeaseLost):
        work()
    assert not Key(key.store, "the work").exists


def _force_fail(key: Key, lease: Lease) -> None:
    assert key.store.force_fail(
        lease.key_id, owner=lease.owner, actor="ann", reason="stuck", ttl=TTL
    )


# What a hot key costs


@pytest.mark.postgresql
def test_case_33_a_loser_and_a_replay_write_nothing(key: Key) -> None:
    lease = key.won()
    with transaction.atomic():
        outcomes = [key.claim(), key.claim(OTHER_REQUEST)]
        assert _transaction_id() is None
    key.store.complete(lease, ANSWER, TTL)
    with transaction.atomic():
        outcomes.append(key.claim())
        assert _transaction_id() is None

    assert isinstance(outcomes[0], Busy)
    assert outcomes[1:] == [Mismatch(), Replay(ANSWER)]


def _transaction_id() -> str | None:
    """The id that a transaction gets with its first write; None before it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id_if_assigned()::text")
        (assigned,) = cursor.fetchone()
    return assigned
