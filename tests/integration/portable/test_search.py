"""A search on a table that is too large to be read, as PostgreSQL's planner sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from idempotency import search
from idempotency.models import IdempotencyKey
from idempotency.search import find_keys
from idempotency.stores import bounds, walks
from idempotency.stores.bounds import QueryTooSlow
from tests.integration.portable.admin.rows import write_key

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is too large to be read at once. A slow machine changes nothing."""
    monkeypatch.setattr(bounds, "CHEAP", -1)
    monkeypatch.setattr(search, "PATIENCE", timedelta(minutes=1))
    # All of them: another test's ANALYZE may have left a larger table in pg_class.
    monkeypatch.setattr(search, "SAMPLED_BLOCKS", 10**6)
    search._sampled.clear()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """How many steps through the newest keys there is time for, each of two records."""

    def allow(number: int) -> None:
        monkeypatch.setattr(walks, "STEP", 2)
        monkeypatch.setattr(search, "walk", lambda rows, seconds: walks.walk(rows, number + 0.5))
        # Each of its looks at the clock takes a second.
        clock = count(0)
        monkeypatch.setattr(walks, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    return allow


@pytest.fixture
def no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_sample", lambda using: ([], []))


def found(term: str) -> tuple[list[int], str]:
    result = find_keys(IdempotencyKey.objects.all(), term)
    return sorted(result.keys.values_list("pk", flat=True)), result.advice


def test_a_key_is_found_under_the_digests_of_all_accounts_and_routes_there_are(
    steps: Callable[[int], None],
) -> None:
    mine = write_key(key="order-1", tenant="acct_a", route="POST /gone")
    yours = write_key(key="order-1", tenant="acct_b", route="POST /v1/charges")
    for number in range(20):
        write_key(key=f"other-{number}")
    steps(0)
    keys, advice = found("order-1")
    assert keys == [mine.pk, yours.pk]
    assert "search for the account, a blank and the key" in advice
    assert "all keys since" not in advice


@pytest.mark.usefixtures("no_sample")
def test_a_key_is_found_among_the_newest_and_what_was_looked_at_is_said(
    steps: Callable[[int], None],
) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    keys = [
        write_key(
            key="order-1" if number in (0, 8) else "other",
            tenant=f"acct_{number}",
            created_at=noon + timedelta(minutes=number),
        )
        for number in range(10)
    ]
    steps(2)
    assert found("order-1") == ([keys[8].pk], found("order-1")[1])
    steps(2)
    assert "all keys since 2026-03-01 12:06 UTC" in found("order-1")[1]
    steps(5)
    assert found("order-1") == ([keys[0].pk, keys[8].pk], "")


@pytest.mark.usefixtures("no_sample")
def test_records_that_are_gone_are_no_reason_to_look_on(steps: Callable[[int], None]) -> None:
    first = write_key(key="pruned")
    write_key(key="order-1")
    newest = write_key(key="other")
    IdempotencyKey.objects.filter(pk=newest.pk).update(id=newest.pk + 10**9)
    IdempotencyKey.objects.filter(key="order-1").update(id=newest.pk + 10**9 - 1)
    first.delete()
    steps(2)
    assert found("no-such-key") == ([], "")


def test_the_sample_is_taken_anew_after_some_minutes(
    steps: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(0)
    write_key(tenant="acct_a")
    assert found("order-1")[0] == []
    late = write_key(key="order-1", tenant="acct_new")
    assert found("order-1")[0] == []
    monkeypatch.setattr(search, "SAMPLE_LASTS", -1)
    assert found("order-1")[0] == [late.pk]


def test_accounts_are_tried_some_at_a_time_the_most_active_ones_first(
    steps: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ACCOUNTS", 1)
    for tenant, number in (("acct_a", 1), ("acct_b", 3), ("acct_c", 2)):
        for _ in range(number):
            write_key(tenant=tenant)
    least = write_key(key="order-1", tenant="acct_z")
    for number in range(10):
        write_key(key=f"other-{number}", tenant="acct_z")
    assert search._sample("default")[1][:3] == ["acct_z", "acct_b", "acct_c"]
    steps(0)
    keys, advice = found("order-1")
    assert keys == [least.pk]
    assert "the keys of the 4 most active accounts" in advice


@pytest.mark.usefixtures("no_sample")
def test_a_step_that_is_given_up_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def too_slow(using: str, limit: timedelta) -> Iterator[None]:
        yield
        raise QueryTooSlow

    write_key(key="order-1")
    monkeypatch.setattr(walks, "statement_timeout", too_slow)
    keys, advice = found("no-such-key")
    assert keys == []
    assert advice


def test_an_account_and_a_key_are_certain_on_the_routes_that_are_in_use(
    steps: Callable[[int], None],
) -> None:
    mine = write_key(key="order-1", tenant="acct_a")
    for number in range(20):
        write_key(key=f"other-{number}", route="POST /v1/transfers")
    steps(0)
    # Its route is in the URLs, so that it does not matter how long nobody used it.
    assert found("acct_a order-1") == ([mine.pk], "")
    keys, advice = found("acct_a order-2")
    assert keys == []
    assert "the account's keys on the routes in use" in advice


@pytest.mark.usefixtures("no_sample")
def test_a_table_of_ordinary_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CHEAP", 50_000)
    key: Any = write_key(key="order-1")
    monkeypatch.setattr(search, "PATIENCE", timedelta(0))
    assert found("order-1") == ([key.pk], "")
    assert found("order-2") == ([], "")


def test_what_a_query_costs_is_reckoned_without_workers_beside_it() -> None:
    with CaptureQueriesContext(connection) as captured:
        bounds.is_cheap(IdempotencyKey.objects.all())
    asked = [query["sql"] for query in captured.captured_queries]
    (explained,) = (number for number, sql in enumerate(asked) if sql.startswith("EXPLAIN"))
    assert "max_parallel_workers_per_gather" in asked[explained - 1]
