"""Every outcome of a claim, on every store. The clock stands still, so every edge is exact."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import IntegrityError, transaction

from idempotency.core.decisions import (
    Busy,
    InDoubt,
    Mismatch,
    OtherVersion,
    Replay,
    Won,
)
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.models import EventKind, IdempotencyKey
from idempotency.stores import clock
from idempotency.stores.base import Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    LEASE,
    NOW,
    OTHER_REQUEST,
    REQUEST,
    TTL,
    Key,
    at,
    seconds,
    values_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

#: The smallest time that every database can tell apart.
TICK = timedelta(milliseconds=1)


def _running(key: Key) -> None:
    key.won()


def _succeeded(key: Key) -> None:
    key.completed()


def _failed(key: Key) -> None:
    key.store.fail(key.won(), "boom", TTL)


def _over(key: Key) -> None:
    key.won(lease=timedelta(0))


def _in_doubt(key: Key) -> None:
    key.store.doubt(key.won(), "who knows")


EVERY_STATE = [_running, _succeeded, _failed, _over, _in_doubt]


def test_a_first_claim_wins(key: Key) -> None:
    lease = key.won()

    assert (lease.attempt, lease.takeover, lease.reused) == (1, False, False)
    assert (lease.recovery_point, lease.context) == ("", None)
    assert (lease.digest, lease.response_day) == (key.scope.digest, NOW.date())
    row = key.row
    assert (row.pk, row.owner, row.state) == (lease.key_id, lease.owner, State.PROCESSING)
    assert (row.key, row.route, row.tenant) == ("k", "POST /things", "acme")
    assert bytes(row.fingerprint) == REQUEST
    assert (row.created_at, row.lease_expires_at) == (NOW, NOW + LEASE)
    assert (row.completed_at, row.expires_at, row.response_day) == (None, None, NOW.date())


def test_a_running_key_is_busy_for_the_rest_of_its_lease(key: Key) -> None:
    lease = key.won()

    with at(NOW + seconds(10)):
        assert key.claim() == Busy(seconds(20))
    assert key.row.owner == lease.owner


@pytest.mark.parametrize("bring_about", EVERY_STATE)
def test_case_18_20_21_another_request_is_a_mismatch_in_every_state(
    key: Key, bring_about: Callable[[Key], None]
) -> None:
    bring_about(key)
    before = key.row.owner

    assert key.claim(OTHER_REQUEST) == Mismatch()
    assert key.row.owner == before


@pytest.mark.parametrize("bring_about", EVERY_STATE)
def test_case_28_another_fingerprint_version_names_the_one_to_compare_by(
    key: Key, bring_about: Callable[[Key], None]
) -> None:
    bring_about(key)

    assert key.claim(OTHER_REQUEST, version=2) == OtherVersion(1)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        RecordedResponse(204, (), b""),
        RecordedResponse(402, (("X", "a, b"), ("X", "c")), b'{"b":1,"a":2,"a":3}\x00'),
        RecordedResponse(200, (("Content-Type", "image/png"),), bytes(range(256))),
        RecordedResponse(201, (("Location", "/things/1"),), None),
    ],
    ids=["json", "empty", "repeated_names", "binary", "not_kept"],
)
def test_case_9_10_a_completed_key_replays_its_answer_byte_for_byte(
    key: Key, answer: RecordedResponse
) -> None:
    key.completed(answer)

    assert key.claim() == Replay(answer)


def test_a_response_that_is_gone_is_a_replay_of_nothing(key: Key) -> None:
    key.completed()
    key.responses()[0].delete()

    assert key.claim() == Replay(None)


def test_a_failed_key_runs_again(key: Key) -> None:
    first = key.won()
    key.store.fail(first, "boom", TTL)

    again = key.won()

    assert (again.key_id, again.attempt, again.takeover) == (first.key_id, 2, False)
    assert again.owner != first.owner
    assert (key.row.failure, key.row.expires_at, key.row.completed_at) == ("", None, None)
    assert key.events() == []


def test_a_lease_that_is_over_is_taken_over_and_the_takeover_is_written_down(key: Key) -> None:
    first = key.won()

    with at(NOW + LEASE):
        second = key.won()

    assert (second.key_id, second.attempt, second.takeover) == (first.key_id, 2, True)
    (event,) = key.events()
    assert (event.kind, event.key_id, event.attempt) == (EventKind.TAKEOVER, first.key_id, 2)
    assert event.data == {"from": str(first.owner), "to": str(second.owner)}
    assert (event.at, event.day) == (NOW + LEASE, (NOW + LEASE).date())


def test_a_lease_holds_to_its_last_moment_and_no_longer(key: Key) -> None:
    key.won()

    with at(NOW + LEASE - TICK):
        assert key.claim() == Busy(TICK)
    with at(NOW + LEASE):
        assert isinstance(key.claim(), Won)


def test_a_takeover_gets_a_new_response_day(key: Key) -> None:
    key.won()

    with at(NOW + timedelta(days=2)):
        lease = key.won()
        key.store.complete(lease, ANSWER, TTL)
        assert key.claim() == Replay(ANSWER)

    assert lease.response_day == key.row.response_day == (NOW + timedelta(days=2)).date()


def test_a_takeover_continues_from_the_recovery_point(key: Key) -> None:
    key.prepared()

    with at(NOW + LEASE):
        lease = key.won()

    assert (lease.recovery_point, lease.context) == ("prepared", {"charge": 7})


def test_case_41_a_lease_of_nothing_or_less_can_be_taken_over_at_once(key: Key) -> None:
    for duration in (timedelta(0), seconds(-5)):
        key.won(lease=duration)
    assert key.won().attempt == 3


def test_case_41_a_lease_below_a_second_holds_that_long(key: Key) -> None:
    key.won(lease=timedelta(milliseconds=250))

    with at(NOW + timedelta(milliseconds=249)):
        assert key.claim() == Busy(TICK)
    with at(NOW + timedelta(milliseconds=250)):
        assert key.won().attempt == 2


def test_case_41_no_lease_at_all_claims_nothing(key: Key) -> None:
    try:
        with transaction.atomic():
            assert key.claim(lease=None) == Busy(timedelta(0))  # SQLite ignores the row
    except (IntegrityError, TypeError) as error:
        refused = "idempotency_key_state" in str(error)
        assert refused or isinstance(error, TypeError)  # noqa: PT017  either will do

    assert not key.exists


@pytest.mark.parametrize("hours", [-1, 1])
def test_case_42_an_application_clock_an_hour_off_changes_nothing(key: Key, hours: int) -> None:
    clock.freeze(None)
    over, done = Key(key.store, "over"), Key(key.store, "done")
    key.won()
    over.won(lease=timedelta(0))
    done.completed(ttl=timedelta(minutes=30))

    with time_machine.travel(NOW + timedelta(hours=hours), tick=False):
        busy = key.claim()
        assert isinstance(busy, Busy)
        assert timedelta(0) < busy.lease_left <= LEASE
        assert over.won().takeover
        assert done.claim() == Replay(ANSWER)
        assert key.store.reclaim(TTL, grace=timedelta(0), limit=10) == 0
        assert key.store.prune_expired(limit=10) == (0, None)


def test_case_50_an_expired_key_runs_as_new_under_a_new_id(key: Key) -> None:
    first = key.completed()

    with at(NOW + TTL - TICK):
        assert key.claim() == Replay(ANSWER)
    with at(NOW + TTL):
        again = key.won(OTHER_REQUEST)

    assert (again.attempt, again.reused, again.takeover) == (1, True, False)
    assert again.key_id != first.key_id
    assert (key.row.pk, key.row.created_at) == (again.key_id, NOW + TTL)
    (event,) = key.events()
    assert (event.kind, event.key_id) == (EventKind.REUSED, again.key_id)
    assert event.data == {"previous_id": first.key_id}


def test_a_reused_key_keeps_its_own_answer_on_the_same_day(key: Key) -> None:
    key.completed(ttl=seconds(1))
    second = RecordedResponse(200, (), b"second")

    with at(NOW + seconds(1)):
        key.completed(second, ttl=TTL)
        assert key.claim() == Replay(second)


def test_an_expired_failed_key_runs_as_new_with_nothing_left_of_the_old_one(key: Key) -> None:
    key.store.fail(key.prepared(), "boom", TTL)

    with at(NOW + TTL):
        lease = key.won(OTHER_REQUEST, version=2)

    assert lease.reused
    assert (lease.recovery_point, lease.context, key.row.failure) == ("", None, "")
    assert key.row.fingerprint_version == 2


def test_the_row_of_a_reused_key_is_that_of_a_new_one(key: Key) -> None:
    won = key.won()
    key.store.record_recovery_point(won, "prepared", {"operation": "pay", "prepared": 1})
    IdempotencyKey.objects.filter(pk=won.key_id).update(look_up_at=NOW, resumes=3)
    key.store.fail(won, "boom", TTL)

    new = Key(key.store, "new")
    with at(NOW + TTL):
        assert key.won().reused
        new.won()

    identity = {"id", "digest", "key", "owner"}
    reused, inserted = (values_of(one.row).items() for one in (key, new))
    assert {name for name, _ in reused - inserted} == identity


def test_case_52_what_is_in_doubt_stays_so_for_good(key: Key) -> None:
    _in_doubt(key)

    with at(NOW + timedelta(days=400)):
        assert key.claim() == InDoubt()


def test_case_59_the_same_key_of_another_account_is_another_key(store: Store) -> None:
    Key(store, tenant="acme").completed()

    assert Key(store, tenant="globex").won().attempt == 1


@pytest.mark.parametrize("other", ["K", "k ", "kk", "'; DROP TABLE k --", "%s", "\\", '"'])
def test_case_5_6_every_character_of_a_key_counts_and_none_has_a_meaning(
    key: Key, other: str
) -> None:
    key.completed()
    stranger = Key(key.store, other)

    assert stranger.won().attempt == 1
    assert stranger.row.key == other
    assert key.claim() == Replay(ANSWER)


def test_a_claim_leaves_the_callers_transaction_usable(key: Key) -> None:
    with transaction.atomic():
        key.won()
        outcomes: list[Any] = [key.claim(), key.claim(OTHER_REQUEST)]

    assert outcomes == [Busy(LEASE), Mismatch()]
