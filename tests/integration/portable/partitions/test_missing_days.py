"""A day that is missing when it is needed stops no payment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from idempotency import partitions
from idempotency.core.decisions import Replay
from idempotency.models import EventKind, StoredResponse
from idempotency.partitions import EVENTS, PARENTS, RESPONSES, Action, Step
from idempotency.stores.base import Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    NOW,
    TTL,
    Key,
    at,
    elsewhere,
    together,
)
from tests.integration.portable.partitions.days import (
    DAY,
    FAR,
    OLD,
    TODAY,
    a_reader,
    attached,
    create,
    run,
    without_rights,
)

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


def test_case_53_a_missing_day_is_created_and_a_warning_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partitions.ensure_day(connection, FAR)

    assert all(FAR in attached(parent) for parent in PARENTS)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "had to create the partitions" in warning.message


def test_a_day_that_is_there_is_looked_at_once_a_process(
    caplog: pytest.LogCaptureFixture, django_assert_num_queries: Any
) -> None:
    partitions.ensure_day(connection, TODAY)
    with django_assert_num_queries(0):
        partitions.ensure_day(connection, TODAY)

    assert caplog.records == []


def test_a_forgotten_day_is_looked_at_again() -> None:
    partitions.ensure_day(connection, FAR)
    for parent in PARENTS:
        run(f"DROP TABLE {Step(Action.DROP, parent, FAR).table}")

    partitions.ensure_day(connection, FAR)
    assert FAR not in attached(RESPONSES)
    partitions.forget_day(connection, FAR)
    partitions.ensure_day(connection, FAR)
    assert FAR in attached(RESPONSES)


def test_nothing_is_created_inside_a_transaction(django_assert_num_queries: Any) -> None:
    with transaction.atomic(), django_assert_num_queries(0):
        partitions.ensure_day(connection, FAR)

    partitions.ensure_day(connection, FAR)
    assert FAR in attached(RESPONSES)


def test_many_healers_at_once_create_a_day_once(caplog: pytest.LogCaptureFixture) -> None:
    together(*[lambda: partitions.ensure_day(connection, FAR)] * 6)

    assert FAR in attached(RESPONSES) & attached(EVENTS)
    assert "could not make sure" not in caplog.text


def test_a_healer_that_cannot_have_the_lock_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        run(f"LOCK TABLE ONLY {RESPONSES} IN SHARE UPDATE EXCLUSIVE MODE")
        elsewhere(lambda: partitions.ensure_day(connection, FAR))

    assert "could not make sure of the partitions" in caplog.text
    assert "lock timeout" in caplog.text
    assert FAR not in attached(RESPONSES)


def test_without_the_right_to_create_tables_the_newest_day_is_used(
    each_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max(attached(RESPONSES))
    key = Key(each_store)

    with without_rights(), at(NOW + 100 * DAY):
        partitions.ensure_day(connection, FAR)
        assert "permission denied" in caplog.text or "must be owner" in caplog.text
        lease = key.won()
        with transaction.atomic():
            assert each_store.complete(lease, ANSWER, TTL) == newest
        assert key.claim() == Replay(ANSWER)

    assert key.row.response_day == newest
    (event,) = key.events()
    assert (event.kind, event.data) == (EventKind.DAY_MISSING, {"used": str(newest)})


def detach(table: str) -> None:
    run(f"ALTER TABLE {RESPONSES} DETACH PARTITION {table}")


def begin_to_detach(table: str) -> None:
    """As a job does that is cut short while it waits for a reader."""
    run("SET lock_timeout = 50")
    try:
        with a_reader(RESPONSES), pytest.raises(OperationalError, match="lock timeout"):
            run(f"ALTER TABLE {RESPONSES} DETACH PARTITION {table} CONCURRENTLY")
    finally:
        run("RESET lock_timeout")
    assert [day.day for day in partitions.list_partitions("default") if day.pending] == [OLD]


@pytest.mark.parametrize("take_away", [detach, begin_to_detach])
def test_a_day_that_is_taken_away_under_an_owner_is_missing(
    each_store: Store, take_away: Callable[[str], None]
) -> None:
    table = create(RESPONSES, OLD)
    key = Key(each_store)
    with at(NOW - 40 * DAY):
        lease = key.won()
        take_away(table)

        with transaction.atomic():
            each_store.complete(lease, ANSWER, 90 * DAY)
        assert key.claim() == Replay(ANSWER)

    assert key.row.response_day == max(attached(RESPONSES))


def test_an_event_on_a_missing_day_goes_to_the_newest_under_its_true_time(
    each_store: Store,
) -> None:
    key = Key(each_store)
    key.won(lease=timedelta(0))

    with at(NOW + 100 * DAY):
        assert key.won().takeover

    (event,) = key.events()
    assert (event.kind, event.at) == (EventKind.TAKEOVER, NOW + 100 * DAY)
    assert event.day == max(attached(EVENTS))


def test_an_operators_answer_on_a_missing_day_goes_to_the_newest(each_store: Store) -> None:
    key = Key(each_store)
    owner = key.won().owner

    with at(NOW + 100 * DAY):
        assert each_store.force_fail(
            key.row.pk, owner=owner, actor="ann", reason="stuck", ttl=TTL, response=ANSWER
        )
        assert key.claim() == Replay(ANSWER)

    assert key.row.response_day == max(attached(RESPONSES))


def test_a_process_that_cannot_create_a_day_does_not_try_with_every_request(
    django_assert_num_queries: Any,
) -> None:
    with without_rights():
        partitions.ensure_day(connection, FAR)
        with django_assert_num_queries(0):
            partitions.ensure_day(connection, FAR)


# Through a view


@pytest.fixture
def pay(settings: Any) -> Callable[[str], Any]:
    settings.ROOT_URLCONF = "tests.integration.portable.urls"

    def post(key: str) -> Any:
        return Client().post(
            "/things", {}, content_type="application/json", headers={"Idempotency-Key": key}
        )

    return post


def test_case_53_a_payment_on_a_missing_day_succeeds_and_replays(
    pay: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with at(NOW + 100 * DAY):
        first, again = pay("k"), pay("k")

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "had to create the partitions" in caplog.text
    assert StoredResponse.objects.get().day == FAR


@pytest.mark.parametrize("may_create", [True, False])
def test_payments_go_on_while_beat_is_stopped_for_ten_days(
    pay: Callable[[str], Any], may_create: bool
) -> None:
    last = max(attached(RESPONSES))

    def ten_days() -> None:
        for number in range(1, 11):
            # The days ahead end with ``last``: from then on none is there.
            moment = datetime.combine(last + number * DAY, NOW.timetz())
            with at(moment):
                answers = [pay(f"k{number}"), pay(f"k{number}")]
            assert [answer.status_code for answer in answers] == [201, 201]
            assert answers[1].headers["Idempotent-Replayed"] == "true"

    if may_create:
        ten_days()
    else:
        with without_rights():
            ten_days()

    used = set(StoredResponse.objects.values_list("day", flat=True))
    expected = {last + number * DAY for number in range(1, 11)} if may_create else {last}
    assert used == expected
