"""What an owner may write while it owns the key, and nothing of it afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from idempotency.core.decisions import Busy, Lease, Mismatch, Replay, Won
from idempotency.core.errors import LeaseLost
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
    seconds,
    values_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

Write = Callable[[Store, Lease], Any]

WRITES: dict[str, Write] = {
    "renew": lambda store, lease: store.renew(lease, LEASE),
    "record": lambda store, lease: store.record_recovery_point(lease, "prepared", {}),
    "complete": lambda store, lease: store.complete(lease, ANSWER, TTL),
    "release": lambda store, lease: store.release(lease),
    "fail": lambda store, lease: store.fail(lease, "late", TTL),
    "suspend": lambda store, lease: store.suspend(lease, "late"),
    "doubt": lambda store, lease: store.doubt(lease, "late"),
}


def _taken_over(key: Key, lease: Lease) -> None:
    with at(NOW + LEASE):
        key.won()


def _completed(key: Key, lease: Lease) -> None:
    key.store.complete(lease, ANSWER, TTL)


def _failed(key: Key, lease: Lease) -> None:
    key.store.fail(lease, "boom", TTL)


def _in_doubt(key: Key, lease: Lease) -> None:
    key.store.doubt(lease, "who knows")


def _released(key: Key, lease: Lease) -> None:
    key.store.release(lease)


def _reclaimed(key: Key, lease: Lease) -> None:
    with at(NOW + LEASE):
        assert key.store.reclaim(TTL, grace=timedelta(0), limit=10) == 1


def _force_failed(key: Key, lease: Lease) -> None:
    assert key.store.force_fail(
        lease.key_id, owner=lease.owner, actor="ann", reason="stuck", ttl=TTL
    )


def _reused(key: Key, lease: Lease) -> None:
    key.store.fail(lease, "boom", timedelta(0))
    key.won()


LOSSES = [
    _taken_over,
    _completed,
    _failed,
    _in_doubt,
    _released,
    _reclaimed,
    _force_failed,
    _reused,
]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("write", WRITES)
def test_case_39_57_an_owner_that_lost_the_key_writes_nothing(
    key: Key, lose: Callable[[Key, Lease], None], write: str
) -> None:
    lease = key.won()
    lose(key, lease)
    before = [values_of(row) for row in IdempotencyKey.objects.all()]
    events = len(key.events())

    with pytest.raises(LeaseLost), transaction.atomic():
        WRITES[write](key.store, lease)

    assert [values_of(row) for row in IdempotencyKey.objects.all()] == before
    assert len(key.events()) == events


@pytest.mark.parametrize("write", WRITES)
def test_somebody_elses_token_writes_nothing(key: Key, write: str) -> None:
    lease = key.won()
    before = values_of(key.row)
    forged = Lease(
        lease.key_id, uuid.uuid4(), lease.attempt, lease.digest, lease.scope, lease.response_day
    )

    with pytest.raises(LeaseLost), transaction.atomic():
        WRITES[write](key.store, forged)

    assert values_of(key.row) == before


def test_a_late_owner_that_nobody_took_over_still_completes(key: Key) -> None:
    lease = key.won()

    with at(NOW + timedelta(days=3)):
        key.store.complete(lease, ANSWER, TTL)

        assert key.claim() == Replay(ANSWER)
        assert key.row.expires_at == NOW + timedelta(days=3) + TTL


def test_completing_settles_the_key_and_keeps_the_answer(key: Key) -> None:
    lease = key.prepared()

    with at(NOW + seconds(5)):
        day = key.store.complete(lease, ANSWER, TTL)

    row = key.row
    assert (row.state, row.lease_expires_at) == (State.SUCCEEDED, None)
    assert (row.context, row.failure) == (None, "")
    assert (row.completed_at, row.expires_at) == (NOW + seconds(5), NOW + seconds(5) + TTL)
    (kept,) = key.responses()
    assert (kept.key_id, kept.day, kept.status) == (row.pk, row.response_day, 201)
    assert kept.tenant == row.tenant, "it outlives the key, and has to be found for its account"
    assert day == row.response_day
    assert (kept.headers, bytes(kept.body)) == (
        [list(pair) for pair in ANSWER.headers],
        ANSWER.body,
    )


def test_the_answer_rolls_back_with_the_work(key: Key) -> None:
    lease = key.won()

    with transaction.atomic():
        key.store.complete(lease, ANSWER, TTL)
        transaction.set_rollback(True)

    assert key.row.state == State.PROCESSING
    assert key.responses() == []
    key.store.complete(lease, ANSWER, TTL)


def test_a_released_key_is_as_if_the_request_never_came(key: Key) -> None:
    key.store.release(key.won())

    assert not key.exists
    assert key.won(OTHER_REQUEST).attempt == 1
    assert key.events() == []


def test_nothing_is_released_once_an_operation_passed_its_recovery_point(key: Key) -> None:
    lease = key.prepared()

    with pytest.raises(LeaseLost):
        key.store.release(lease)

    assert key.row.recovery_point == "prepared"


def test_a_failed_key_keeps_its_fingerprint_and_says_why(key: Key) -> None:
    key.store.fail(key.won(), "x" * 600, TTL)

    row = key.row
    assert (row.state, row.lease_expires_at, row.failure) == (State.FAILED, None, "x" * 500)
    assert (row.completed_at, row.expires_at) == (NOW, NOW + TTL)
    assert key.claim(OTHER_REQUEST) == Mismatch()


@pytest.mark.parametrize("forget", [False, True])
def test_a_failed_operation_resumes_unless_it_is_to_be_forgotten(key: Key, forget: bool) -> None:
    key.store.fail(key.prepared(), "not sent", TTL, forget_recovery=forget)

    lease = key.won()

    expected: tuple[str, Any] = ("", None) if forget else ("prepared", {"charge": 7})
    assert (lease.recovery_point, lease.context) == expected


def test_a_suspended_operation_can_be_resumed_at_once(key: Key) -> None:
    first = key.prepared()
    key.store.suspend(first, "the gateway is away")

    assert key.row.failure == "the gateway is away"
    lease = key.won()
    assert (lease.takeover, lease.attempt, lease.recovery_point) == (True, 2, "prepared")


def test_renewing_counts_from_now(key: Key) -> None:
    lease = key.won()

    with at(NOW + seconds(20)):
        key.store.renew(lease, LEASE)
    with at(NOW + seconds(49)):
        assert key.claim() == Busy(seconds(1))
    with at(NOW + seconds(50)):
        assert isinstance(key.claim(), Won)


def test_what_is_in_doubt_is_written_down(key: Key) -> None:
    lease = key.prepared()
    key.store.doubt(lease, "no answer")

    row = key.row
    assert (row.state, row.lease_expires_at, row.expires_at) == (State.IN_DOUBT, None, None)
    assert (row.failure, row.recovery_point, row.context) == (
        "no answer",
        "prepared",
        {"charge": 7},
    )
    (event,) = key.events()
    assert (event.kind, event.attempt, event.reason) == (EventKind.IN_DOUBT, 1, "no answer")


def test_a_recovery_point_keeps_any_json(key: Key) -> None:
    context = {"text": "é\u2028", "deep": [{"n": 10**20, "f": 0.1}], "none": None}
    key.store.record_recovery_point(key.won(lease=timedelta(0)), "sent", context)

    lease = key.won()

    assert (lease.recovery_point, lease.context) == ("sent", context)
