"""How the service stands, in one look."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from prometheus_client import CollectorRegistry

from idempotency import overview, partitions
from idempotency.client.breaker import BreakerPolicy, CircuitBreaker, Outcome
from idempotency.client.breaker import State as BreakerState
from idempotency.client.observers import PrometheusObserver
from idempotency.client.shared import PREFIX, RedisLink, SharedBreaker, SharedBudget
from idempotency.conf import settings as chosen
from idempotency.core.states import State
from idempotency.observability import vitals
from idempotency.overview import storage
from idempotency.overview.facts import Keys, Overview
from idempotency.testing import freeze_clock
from tests.integration.portable.admin.rows import write_key
from tests.integration.portable.observability.test_vitals import send

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with freeze_clock(NOW):
        yield


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    """The days around the real present are of no use in March."""
    monkeypatch.setattr(partitions, "days_ahead", lambda using: 14)


@pytest.fixture(autouse=True)
def server() -> Iterator[redis.Redis]:
    """Another test's open breaker would need somebody here; it rests for longer than that test."""
    server = redis.Redis.from_url(str(chosen().redis_url))

    def clear() -> None:
        for name in server.scan_iter(f"{PREFIX}*"):
            server.delete(name)

    clear()
    yield server
    clear()
    server.close()


def keys_of(shown: Overview) -> Keys:
    assert shown.keys is not None
    return shown.keys


def numbers(shown: Overview) -> dict[State, int | None]:
    return {count.state: count.number for count in keys_of(shown).states}


def test_open_keys_are_counted_and_the_oldest_running_one_is_told() -> None:
    write_key(age=3 * MINUTE)
    write_key(age=90 * MINUTE, lease=-MINUTE)
    write_key("in_doubt")
    write_key("succeeded")
    shown = overview.read()
    assert numbers(shown)[State.PROCESSING] == 2
    assert numbers(shown)[State.IN_DOUBT] == 1
    assert keys_of(shown).oldest_processing == 90 * MINUTE
    assert shown.at == NOW
    assert shown.problems == ()


def test_counting_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST", 2)
    for _ in range(3):
        write_key()
    [running] = [count for count in keys_of(overview.read()).states if count.state == "processing"]
    assert (running.number, running.or_more) == (2, True)


def test_without_keys_nothing_is_running() -> None:
    assert keys_of(overview.read()).oldest_processing is None


def test_settled_keys_are_unknown_until_the_server_has_an_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test may have analysed the table.
    monkeypatch.setattr(storage, "_analysed_at", lambda using: None)
    write_key("succeeded")
    found = numbers(overview.read())
    assert found[State.SUCCEEDED] is None
    assert found[State.FAILED] is None


@pytest.mark.postgresql
def test_settled_keys_are_estimated_and_not_counted() -> None:
    for number in range(200):
        write_key("failed" if number % 10 == 0 else "succeeded")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE idempotency_idempotencykey")
    assert storage._estimated(State.FAILED, storage.IdempotencyKey.objects.all(), NOW).number == 20
    shown = overview.read()
    counting = [query.sql for query in shown.queries if "COUNT(" in query.sql.upper()]
    assert counting
    assert not [sql for sql in counting if "LIMIT" not in sql]


@pytest.mark.postgresql
def test_tables_and_days_are_told_with_their_sizes() -> None:
    shown = overview.read().storage
    assert shown is not None
    names = [table.name for table in shown.tables]
    assert {"idempotency_idempotencykey", "idempotency_storedresponse"} <= set(names)
    assert all(table.size > 0 for table in shown.tables if table.indexes)
    today = datetime.now(UTC).date()
    assert today in [day.day for day in shown.days]
    assert all(day.size > 0 and day.attached for day in shown.days)


@pytest.mark.postgresql
def test_the_next_day_to_be_dropped_is_the_oldest_once_its_retention_is_over(
    monkeypatch: pytest.MonkeyPatch, configure: Any
) -> None:
    days = [
        partitions.Partition(partitions.RESPONSES, date(2026, 2, day), True, False)
        for day in (3, 4, 5)
    ]
    monkeypatch.setattr(partitions, "list_partitions", lambda using: days)
    configure(RETENTION=30 * 86400)
    shown = overview.read().storage
    assert shown is not None
    assert shown.next_drop == (date(2026, 2, 3), datetime(2026, 3, 6, tzinfo=UTC))
    # And as the job sees it: not a moment before.
    oldest = (datetime(2026, 3, 6, tzinfo=UTC) - timedelta(days=30)).date()
    assert partitions._retirable(days, oldest) == days[:1]
    assert (
        partitions._retirable(days, (datetime(2026, 3, 5, 23, tzinfo=UTC) - timedelta(30)).date())
        == []
    )


@pytest.mark.postgresql
def test_the_newest_day_is_never_to_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    only = partitions.Partition(partitions.RESPONSES, date(2026, 1, 1), True, False)
    monkeypatch.setattr(partitions, "list_partitions", lambda using: [only])
    shown = overview.read().storage
    assert shown is not None
    assert shown.next_drop is None


def test_a_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(using: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")

    monkeypatch.setattr(vitals, "read", broken)
    write_key()
    shown = overview.read()
    assert shown.vitals is None
    assert numbers(shown)[State.PROCESSING] == 1
    [problem] = shown.problems
    assert "no_such_table" in problem
    assert problem in shown.attention


@pytest.mark.postgresql
def test_a_part_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(using: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(600)")  # for ever, in effect: only the bound ends it

    monkeypatch.setattr(overview, "PATIENCE", timedelta(0))
    monkeypatch.setattr(vitals, "read", slow)
    shown = overview.read()
    assert shown.vitals is None
    assert ["gave the query up" in problem for problem in shown.problems] == [True]


def test_the_statements_are_told_with_their_times_and_without_values() -> None:
    write_key(key="secret-of-a-client")
    queries = overview.read().queries
    assert len(queries) > 5
    assert all(query.seconds >= 0 for query in queries)
    assert not [query for query in queries if "set_config" in query.sql]
    assert not [query for query in queries if "secret" in query.sql]


# What needs somebody


def sentences() -> str:
    return "\n".join(overview.read().attention)


def test_in_quiet_times_nothing_needs_anybody() -> None:
    write_key()
    write_key("succeeded")
    write_key(lease=-MINUTE)  # the job sees to it
    send()
    assert sentences() == ""


def test_what_is_in_doubt_abandoned_or_given_up_needs_somebody() -> None:
    from idempotency.models import MessageState

    write_key("in_doubt")
    write_key(lease=-5 * MINUTE)
    send(state=MessageState.DEAD)
    send(due=10 * MINUTE)
    found = sentences()
    assert "1 key is in doubt" in found
    assert "1 attempt died" in found
    assert "1 message was given up" in found
    assert "Messages of the channel “tests” are late" in found


def test_an_operation_without_an_outcome_for_long_needs_somebody(configure: Any) -> None:
    configure(RECONCILE_ALERT_AFTER=900)
    left = {"failure": "timed out", "recovery_point": "prepared", "lease": -MINUTE}
    write_key(**left, recovery_point_at=NOW - 14 * MINUTE)
    assert sentences() == ""
    write_key(**left, recovery_point_at=NOW - 16 * MINUTE)
    assert "2 operations have had no outcome for long" in sentences()


@pytest.mark.postgresql
def test_days_that_run_out_need_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "days_ahead", lambda using: 1)
    assert "1 day has partitions ahead" in sentences()


def test_keys_that_are_not_pruned_need_somebody() -> None:
    write_key("succeeded", expires=-2 * 60 * MINUTE)
    assert "Expired keys are not pruned" in sentences()


# What is called


def test_shared_breakers_and_budgets_are_told_those_that_are_open_first(
    server: redis.Redis,
) -> None:
    link = RedisLink(server)
    SharedBudget(link, "service:a").credit()
    failing = SharedBreaker(link, "gateway:b", "charge", BreakerPolicy(minimum_calls=1))
    failing.settle(failing.admit(), Outcome.FAILURE)
    shown = overview.read()
    names = [dependency.name for dependency in shown.dependencies.found]
    assert names == ["gateway:b", "service:a"]
    [breaker] = shown.dependencies.found[0].breakers
    assert breaker.state is BreakerState.OPEN
    assert shown.dependencies.found[1].attempts == (1, 0)
    assert "gateway:b fails" in "\n".join(shown.attention)


def test_while_redis_is_away_that_is_what_is_told(configure: Any) -> None:
    configure(REDIS_URL="redis://127.0.0.1:1/0")
    shown = overview.read()
    assert shown.dependencies.found == ()
    assert "Redis does not answer" in shown.dependencies.note
    assert "Redis does not answer" in shown.traffic_missing


def test_without_redis_the_breakers_are_as_this_process_saw_them(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(REDIS_URL=None)
    registry = CollectorRegistry()
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    name = f"gateway:{uuid.uuid4()}"
    told = PrometheusObserver(registry).breaker_listener(name, "charge")
    breaker = CircuitBreaker(BreakerPolicy(minimum_calls=1), on_change=told)
    breaker.settle(breaker.admit(), Outcome.FAILURE)
    shown = overview.read()
    [dependency] = shown.dependencies.found
    assert dependency.name == name
    assert dependency.breakers[0].state is BreakerState.OPEN
    assert dependency.attempts is None
    assert "REDIS_URL" in shown.dependencies.note
    assert "REDIS_URL" in shown.traffic_missing
