"""Day partitions on PostgreSQL: made sure of, planned, retired, and never in anybody's way."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import Client

from idempotency import maintenance, partitions
from idempotency.core.decisions import Replay
from idempotency.core.states import State
from idempotency.models import EventKind, IdempotencyKey, StoredResponse
from idempotency.partitions import EVENTS, PARENTS, RESPONSES, Action, Step
from idempotency.stores.base import Store
from idempotency.stores.database import DatabaseStore
from idempotency.stores.postgres import PostgresStore
from tests.integration.portable.conformance.harness import (
    ANSWER,
    NOW,
    PATIENCE,
    TTL,
    Key,
    at,
    behind_a_lock,
    elsewhere,
    seconds,
    together,
)

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

TODAY = NOW.date()
DAY = timedelta(days=1)
FAR = TODAY + 100 * DAY
#: Older than the default retention of 30 days.
OLD = TODAY - 40 * DAY


def run(statement: str, parameters: Any = None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0] if cursor.description else None


def create(parent: str, day: date) -> str:
    run("SELECT idempotency_ensure_day_v1(%s, %s)", [parent, day])
    return Step(Action.CREATE, parent, day).table


def attached(parent: str) -> set[date]:
    return {
        partition.day
        for partition in partitions.list_partitions("default")
        if partition.parent == parent and partition.attached and not partition.pending
    }


def exists(table: str) -> bool:
    return bool(run("SELECT to_regclass(%s) IS NOT NULL", [table]))


def retire() -> list[str]:
    steps = partitions.plan("default", retire=True)
    return [str(outcome) for outcome in partitions.apply("default", steps)]


@pytest.fixture(autouse=True)
def days() -> Iterator[None]:
    """Whatever days a test makes or drops, the next one finds the usual ones."""
    partitions._known.clear()
    partitions._failed_at.clear()
    yield
    partitions._known.clear()
    partitions._failed_at.clear()
    usual = {TODAY + number * DAY for number in range(-1, 15)}
    for partition in partitions.list_partitions("default"):
        if partition.day not in usual:
            run(f"DROP TABLE {Step(Action.DROP, partition.parent, partition.day).table}")
    for parent in PARENTS:
        for day in usual:
            create(parent, day)


@pytest.fixture
def store() -> Store:
    return PostgresStore("default")


@pytest.fixture(params=[PostgresStore, DatabaseStore])
def each_store(request: pytest.FixtureRequest) -> Store:
    implementation: Store = request.param("default")
    return implementation


# Making sure of a day


def test_case_53_a_missing_day_is_created_and_a_warning_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partitions.ensure_day("default", FAR)

    assert all(FAR in attached(parent) for parent in PARENTS)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "had to create the partitions" in warning.message


def test_a_day_that_is_there_is_looked_at_once_a_process(
    caplog: pytest.LogCaptureFixture, django_assert_num_queries: Any
) -> None:
    partitions.ensure_day("default", TODAY)
    with django_assert_num_queries(0):
        partitions.ensure_day("default", TODAY)

    assert caplog.records == []


def test_a_forgotten_day_is_looked_at_again() -> None:
    partitions.ensure_day("default", FAR)
    for parent in PARENTS:
        run(f"DROP TABLE {Step(Action.DROP, parent, FAR).table}")

    partitions.ensure_day("default", FAR)
    assert FAR not in attached(RESPONSES)
    partitions.forget_day("default", FAR)
    partitions.ensure_day("default", FAR)
    assert FAR in attached(RESPONSES)


def test_nothing_is_created_inside_a_transaction(django_assert_num_queries: Any) -> None:
    with transaction.atomic(), django_assert_num_queries(0):
        partitions.ensure_day("default", FAR)

    partitions.ensure_day("default", FAR)
    assert FAR in attached(RESPONSES)


def test_many_healers_at_once_create_a_day_once(caplog: pytest.LogCaptureFixture) -> None:
    together(*[lambda: partitions.ensure_day("default", FAR)] * 6)

    assert FAR in attached(RESPONSES) & attached(EVENTS)
    assert "could not make sure" not in caplog.text


def test_a_healer_that_cannot_have_the_lock_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        run(f"LOCK TABLE ONLY {RESPONSES} IN SHARE UPDATE EXCLUSIVE MODE")
        elsewhere(lambda: partitions.ensure_day("default", FAR))

    assert "could not make sure of the partitions" in caplog.text
    assert "lock timeout" in caplog.text
    assert FAR not in attached(RESPONSES)


@contextmanager
def without_rights() -> Iterator[None]:
    """As an application whose database user may not create tables."""
    role = f"app_{uuid.uuid4().hex}"
    run(f"CREATE ROLE {role}")
    run(f"GRANT USAGE ON SCHEMA public TO {role}")
    run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    run(f"SET ROLE {role}")
    try:
        yield
    finally:
        run("RESET ROLE")
        run(f"DROP OWNED BY {role}")
        run(f"DROP ROLE {role}")


def test_without_the_right_to_create_tables_the_newest_day_is_used(
    each_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max(attached(RESPONSES))
    key = Key(each_store)

    with without_rights(), at(NOW + 100 * DAY):
        partitions.ensure_day("default", FAR)
        assert "permission denied" in caplog.text or "must be owner" in caplog.text
        lease = key.won()
        with transaction.atomic():
            assert each_store.complete(lease, ANSWER, TTL) == newest
        assert key.claim() == Replay(ANSWER)

    assert key.row.response_day == newest
    (event,) = key.events()
    assert (event.kind, event.data) == (EventKind.DAY_MISSING, {"used": str(newest)})


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
        partitions.ensure_day("default", FAR)
        with django_assert_num_queries(0):
            partitions.ensure_day("default", FAR)


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


# Planning ahead


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
        outcomes = [str(outcome) for outcome in elsewhere(partial_apply(steps))]

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


# In nobody's way


def partial_apply(steps: list[Step]) -> Callable[[], Any]:
    return lambda: partitions.apply("default", steps)


@contextmanager
def a_reader(table: str) -> Iterator[None]:
    """Another session in a transaction that has read the table, and does not end."""
    reading, done = threading.Event(), threading.Event()

    def read() -> None:
        try:
            with transaction.atomic():
                run(f"SELECT count(*) FROM {table}")  # noqa: S608  one of our own names
                reading.set()
                assert done.wait(PATIENCE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(read)
        assert reading.wait(PATIENCE)
        try:
            yield
        finally:
            done.set()
            future.result(PATIENCE)


def test_case_54_dropping_days_blocks_no_claim(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads claim, complete and replay while a drop waits for a reader.

    Whatever queued behind the drop would wait as long as the drop, for the reader, and fail at its
    own lock timeout.
    """
    monkeypatch.setattr(partitions, "JOB_LOCK_TIMEOUT", timedelta(seconds=PATIENCE))
    create(RESPONSES, OLD)
    longest: list[float] = []

    def pay(number: int) -> None:
        run("SET lock_timeout = '2s'")
        for turn in range(25):
            key = Key(store, f"{number}/{turn}")
            begun = time.perf_counter()
            with transaction.atomic():
                store.complete(key.won(), ANSWER, TTL)
            assert key.claim() == Replay(ANSWER)
            longest.append(time.perf_counter() - begun)

    with behind_a_lock(maintenance.drop_expired_partitions) as drop, a_reader(RESPONSES):
        drop.start()
        together(*[lambda number=number: pay(number) for number in range(8)])
        assert exists(Step(Action.DROP, RESPONSES, OLD).table)

    assert drop.value.done == 1
    assert not exists(Step(Action.DROP, RESPONSES, OLD).table)
    with capsys.disabled():
        print(f"\nlongest claim, completion and replay beside a drop: {max(longest) * 1000:.0f} ms")
