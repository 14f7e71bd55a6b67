"""Where a key stands, read without a claim. The clock stands still, so every edge is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from idempotency.core.decisions import Standing
from tests.integration.portable.conformance.harness import (
    CLAIMABLE,
    LEASE,
    NOW,
    TTL,
    Key,
    at,
    expired,
    failed,
    nothing,
    over,
    seconds,
    values_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]


def doubted(key: Key) -> None:
    key.store.doubt(key.won(), "nobody knows")


def suspended(key: Key) -> None:
    key.store.suspend(key.prepared(), "unknown")


STANDINGS = {
    nothing: Standing.NEW,
    expired: Standing.NEW,
    Key.won: Standing.RUNNING,
    failed: Standing.REPEATABLE,
    over: Standing.REPEATABLE,
    suspended: Standing.REPEATABLE,
    Key.completed: Standing.ANSWERED,
    doubted: Standing.ANSWERED,
}


@pytest.mark.parametrize("leave", STANDINGS, ids=lambda leave: leave.__name__)
def test_every_way_a_key_can_stand_is_told_by_one_statement_that_writes_nothing(
    key: Key, leave: Callable[[Key], object]
) -> None:
    leave(key)
    before = values_of(key.row) if key.exists else None

    with CaptureQueriesContext(connection) as sent:
        standing = key.store.standing(key.scope.digest)

    assert standing is STANDINGS[leave]
    assert len(sent) == 1
    assert (values_of(key.row) if key.exists else None) == before


@pytest.mark.parametrize("leave", CLAIMABLE, ids=lambda leave: leave.__name__)
def test_what_a_claim_would_win_is_new_or_repeatable(
    key: Key, leave: Callable[[Key], object]
) -> None:
    leave(key)

    standing = key.store.standing(key.scope.digest)

    expected = Standing.NEW if key.won().attempt == 1 else Standing.REPEATABLE
    assert standing is expected


def test_a_lease_and_a_failure_end_at_their_moment(key: Key) -> None:
    key.won()
    with at(NOW + LEASE - seconds(1e-6)):
        assert key.store.standing(key.scope.digest) is Standing.RUNNING
    with at(NOW + LEASE):
        assert key.store.standing(key.scope.digest) is Standing.REPEATABLE

    other = Key(key.store, "other")
    failed(other)
    with at(NOW + TTL - seconds(1e-6)):
        assert other.store.standing(other.scope.digest) is Standing.REPEATABLE
    with at(NOW + TTL):
        assert other.store.standing(other.scope.digest) is Standing.NEW
