"""Days are created ahead, and dropped whole once no key needs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from idempotency import partitions
from idempotency.core.decisions import Replay
from idempotency.core.states import State
from idempotency.models import IdempotencyKey
from idempotency.partitions import EVENTS, PARENTS, RESPONSES, Action, Step
from idempotency.stores.base import Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    NOW,
    TTL,
    Key,
    at,
    elsewhere,
    seconds,
)
from tests.integration.portable.partitions.days import (
    DAY,
    OLD,
    TODAY,
    a_reader,
    attached,
    create,
    exists,
    retire,
    run,
)

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


def test_the_days_ahead_are_planned_and_created(settings: Any) -> None:
    settings.IDEMPOTENCY = {"PARTITION_DAYS_AHEAD": 16}

    steps = partitions.plan("default", create=True)
    assert [str(step) for step in steps] == [
        f"create {parent}_p{TODAY + number * DAY:%Y%m%d}"
        for parent in PARENTS
        for number in (15, 16)
    ]
    outcomes = partitions.apply("default", steps)
    assert [outcome.problem for outcome in outcomes] == [""] * 4
    assert partitions.plan("default", create=True) == []
    assert partitions.days_ahead("default") == 16


def test_the_days_ahead_are_counted_to_the_first_gap() -> None:
    assert partitions.days_ahead("default") == 14
    run(f"DROP TABLE {Step(Action.DROP, EVENTS, TODAY + 4 * DAY).table}")
    assert partitions.days_ahead("default") == 3
    with at(NOW + 20 * DAY):
        assert partitions.days_ahead("default") == 0


# Retiring


def test_a_day_older_than_the_retention_is_detached_and_dropped(settings: Any) -> None:
    settings.IDEMPOTENCY = {"RETENTION": timedelta(days=30)}
    young = TODAY - 30 * DAY
    due = TODAY - 31 * DAY
    tables = [create(parent, due) for parent in PARENTS]
    kept = [create(parent, young) for parent in PARENTS]

    assert retire() == [f"{action} {table}" for table in tables for action in ("detach", "drop")]

    assert not any(exists(table) for table in tables)
    assert all(exists(table) for table in kept)


def test_a_day_is_as_old_as_its_last_moment(settings: Any) -> None:
    settings.IDEMPOTENCY = {"RETENTION": timedelta(hours=36)}
    create(RESPONSES, TODAY - 2 * DAY)
    midnight = datetime.combine(TODAY, NOW.timetz()).replace(hour=0, minute=0, second=0)

    with at(midnight + timedelta(hours=12) - seconds(1)):
        assert partitions.plan("default", retire=True) == []
    with at(midnight + timedelta(hours=12)):
        assert [step.day for step in partitions.plan("default", retire=True)] == [
            TODAY - 2 * DAY
        ] * 2


def _running(key: Key) -> None:
    key.won()


def _unexpired(key: Key) -> None:
    key.completed(ttl=timedelta(days=90))


def _in_doubt(key: Key) -> None:
    key.store.doubt(key.won(), "who knows")


@pytest.mark.parametrize("bring_about", [_running, _unexpired, _in_doubt])
def test_a_day_that_a_live_key_points_at_is_never_planned_away(
    store: Store, bring_about: Callable[[Key], None]
) -> None:
    table = create(RESPONSES, OLD)
    with at(NOW - 40 * DAY):
        bring_about(Key(store))
    assert IdempotencyKey.objects.get().response_day == OLD

    assert retire() == []
    assert exists(table)


def test_a_day_of_expired_keys_is_dropped(store: Store) -> None:
    table = create(RESPONSES, OLD)
    with at(NOW - 40 * DAY):
        Key(store).completed()

    assert retire() == [f"detach {table}", f"drop {table}"]
    assert Key(store).won().reused


def test_a_key_that_came_to_need_a_planned_day_gets_it_back(store: Store) -> None:
    """Between plan and drop; a response falls back to the newest day, which was this one then."""
    table = create(RESPONSES, OLD)
    steps = partitions.plan("default", retire=True)
    with at(NOW - 40 * DAY):
        Key(store).completed(ttl=timedelta(days=90))

    outcomes = [str(outcome) for outcome in partitions.apply("default", steps)]

    assert outcomes == [
        f"detach {table}",
        f"drop {table}: a key came to need it, so it was attached again",
    ]
    assert OLD in attached(RESPONSES)
    assert Key(store).claim() == Replay(ANSWER)


def test_the_events_of_an_open_key_are_kept(store: Store) -> None:
    table = create(EVENTS, OLD)
    settled = Key(store, "settled")
    with at(NOW - 40 * DAY):
        Key(store, "open").store.doubt(Key(store, "open").won(), "who knows")
        settled.store.doubt(settled.won(), "who knows")
        owner = settled.row.owner
        store.force_fail(settled.row.pk, owner=owner, actor="ann", reason="no", ttl=TTL)

    assert retire() == []
    row = IdempotencyKey.objects.get(state=State.IN_DOUBT)
    assert store.force_fail(row.pk, owner=row.owner, actor="ann", reason="no", ttl=timedelta(0))
    assert retire() == [f"detach {table}", f"drop {table}"]


def test_only_tables_that_bear_our_comment_are_touched() -> None:
    ours, other = create(RESPONSES, OLD), create(RESPONSES, OLD - DAY)
    run(f"COMMENT ON TABLE {other} IS 'kept by hand'")
    detached = create(RESPONSES, OLD - 2 * DAY)
    run(f"ALTER TABLE {RESPONSES} DETACH PARTITION {detached}")
    run(f"COMMENT ON TABLE {detached} IS NULL")

    assert retire() == [f"detach {ours}", f"drop {ours}"]
    assert exists(other)
    assert exists(detached)
    for table in (other, detached):
        run(f"DROP TABLE {table}")


def test_the_newest_day_is_never_retired() -> None:
    with at(NOW + 400 * DAY):
        retire()

    assert attached(RESPONSES) == attached(EVENTS) == {TODAY + 14 * DAY}


def test_a_detach_that_was_cut_short_is_finished_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = create(RESPONSES, OLD)
    steps = partitions.plan("default", retire=True)

    # A reader that was there first, and a detach that does not wait for it long enough.
    monkeypatch.setattr(partitions, "JOB_LOCK_TIMEOUT", timedelta(milliseconds=50))
    with a_reader(RESPONSES):
        outcomes = [
            str(outcome) for outcome in elsewhere(lambda: partitions.apply("default", steps))
        ]

    assert outcomes[0].startswith(f"detach {table}: ")
    assert outcomes[1] == f"drop {table}: an earlier step failed"
    (pending,) = [p for p in partitions.list_partitions("default") if p.pending]
    assert pending.day == OLD
    assert retire() == [f"finalize {table}", f"drop {table}"]
    assert not exists(table)


def test_a_detached_leftover_is_dropped() -> None:
    table = create(EVENTS, OLD)
    run(f"ALTER TABLE {EVENTS} DETACH PARTITION {table}")

    assert retire() == [f"drop {table}"]
    assert not exists(table)


def test_a_detached_day_that_a_key_needs_comes_back(store: Store) -> None:
    table = create(RESPONSES, OLD)
    with at(NOW - 40 * DAY):
        Key(store).completed(ttl=timedelta(days=90))
    run(f"ALTER TABLE {RESPONSES} DETACH PARTITION {table}")
    assert Key(store).claim() == Replay(None)

    assert retire() == [f"attach {table}"]
    assert Key(store).claim() == Replay(ANSWER)


def test_a_plan_is_not_applied_in_a_transaction() -> None:
    with transaction.atomic(), pytest.raises(TransactionManagementError):
        partitions.apply("default", [])


def test_no_step_begins_after_the_deadline() -> None:
    table = create(RESPONSES, OLD)
    steps = partitions.plan("default", retire=True)

    outcomes = partitions.apply("default", steps, deadline=time.monotonic())

    assert {outcome.problem for outcome in outcomes} == {"out of time; the next run goes on"}
    assert exists(table)


def test_a_job_leaves_the_sessions_limits_as_it_found_them() -> None:
    names = ("lock_timeout", "statement_timeout")
    before = [run(f"SHOW {name}") for name in names]
    create(RESPONSES, OLD)

    retire()

    assert [run(f"SHOW {name}") for name in names] == before
