"""The queue of decisions: what is in it, in which order, and page by page."""

from __future__ import annotations

from datetime import timedelta

import pytest

from idempotency import doubts
from idempotency.operations import PREPARED
from tests.integration.portable.conformance.harness import NOW, TTL, at, seconds
from tests.integration.portable.doubts.payouts import stand
from tests.integration.portable.jobs.shipments import named

pytestmark = pytest.mark.django_db

ALERT = seconds(900)


def queued(**options: object) -> list[str]:
    rows = doubts.queue("default", **{"limit": 50, **options})  # type: ignore[arg-type]
    return [row.key for row in rows]


def test_it_holds_what_is_in_doubt_and_what_is_open_for_too_long() -> None:
    with at(NOW):
        stand("doubt")
        stand("late", doubt=False, lease=timedelta(0))
        stand("held", doubt=False, lease=timedelta(hours=1))
    with at(NOW + seconds(1)):
        stand("young", doubt=False, lease=timedelta(0))
        named("atomic").won()
        named("answered").completed()
    with at(NOW + ALERT):
        assert queued() == ["doubt", "late", "held"]
    with at(NOW + ALERT - seconds(1)):
        assert queued() == ["doubt"]


def test_a_withdrawn_operation_is_not_in_it() -> None:
    with at(NOW):
        key = named("gone")
        lease = key.prepared()
        key.store.fail(lease, "not sent", TTL, forget_recovery=True)
        assert key.row.recovery_point_at is not None
        key.won()  # it runs again, and has not passed its recovery point
    with at(NOW + ALERT):
        assert queued() == []


def test_the_oldest_comes_first_and_a_page_goes_on_where_the_last_one_ended() -> None:
    # Two of the same moment: the number decides.
    for name, moment in (("c", 3), ("a", 1), ("b1", 2), ("b2", 2)):
        with at(NOW + seconds(moment)):
            stand(name)
    with at(NOW + seconds(5)):
        first = doubts.queue("default", limit=2)
        assert [row.key for row in first] == ["a", "b1"]
        place = (first[-1].recovery_point_at, first[-1].pk)
        assert queued(after=place) == ["b2", "c"]
        assert queued(after=place, limit=1) == ["b2"]


def test_what_stands_after_a_second_intent_counts_from_that_one() -> None:
    with at(NOW):
        key = stand("late", doubt=False, lease=timedelta(0))
    with at(NOW + ALERT):
        taken = key.store.take_over(key.row.pk, seconds(30))
        assert taken is not None
        key.store.record_recovery_point(taken, PREPARED, key.row.context)
        assert queued() == []
