"""The page that says how the service stands: what it shows, and to whom."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from idempotency import overview, traffic
from idempotency.admin.operations_charts import HEIGHT, WIDTH, averages, columns, outline
from idempotency.client.breaker import State as BreakerState
from idempotency.models import IdempotencyKey
from idempotency.overview.facts import Breaker, Dependencies, Dependency
from idempotency.traffic import MINUTES, Traffic

MakeKey = Callable[..., IdempotencyKey]
PAGE = "/admin/idempotency/operations/"


@pytest.fixture
def watcher(staff: Callable[..., Client]) -> Client:
    """May see how the service stands, and no key."""
    return staff("view_operations", name="watcher")


@pytest.fixture(autouse=True)
def nothing_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests call things, and count requests."""
    monkeypatch.setattr(overview, "read_dependencies", Dependencies)
    monkeypatch.setattr(traffic, "read", lambda: None)


def text_of(client: Client) -> str:
    """The page as a person reads it."""
    page = client.get(PAGE)
    assert page.status_code == 200
    main = page.content.decode().split('<div id="content-main"')[1]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def test_it_says_what_is_open_and_what_needs_somebody(watcher: Client, make_key: MakeKey) -> None:
    make_key(age=timedelta(hours=4, minutes=3))
    make_key("in_doubt", age=timedelta(days=1))
    text = text_of(watcher)
    assert "1 key is in doubt: somebody has to decide." in text
    assert "Oldest that is processing: 4 h 3 min" in text
    assert "processing 1 in doubt 1" in text
    assert "In doubt: waiting for a decision 1 1 d 0 h" in text


def test_it_says_when_nothing_needs_anybody(watcher: Client) -> None:
    assert "What needs somebody Nothing." in text_of(watcher)


def test_it_shows_no_key(watcher: Client, make_key: MakeKey) -> None:
    make_key(key="secret-of-a-client", tenant="acct_hidden")
    content = watcher.get(PAGE).content
    assert b"secret-of-a-client" not in content
    assert b"acct_hidden" not in content


def test_it_needs_a_permission_of_its_own(staff: Callable[..., Client], root: Client) -> None:
    assert staff("view_idempotencykey").get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302
    assert root.get(PAGE).status_code == 200


def test_lists_are_linked_for_whoever_may_see_them(
    watcher: Client, staff: Callable[..., Client], make_key: MakeKey
) -> None:
    make_key()
    link = b"/admin/idempotency/idempotencykey/?state__exact=processing"
    assert link not in watcher.get(PAGE).content
    both = staff("view_operations", "view_idempotencykey", name="both")
    assert link in both.get(PAGE).content


def test_the_index_and_the_lists_lead_there_whoever_may_see_it(
    watcher: Client, staff: Callable[..., Client], viewer: Client
) -> None:
    assert reverse("admin:idempotency_operations_changelist") == PAGE
    for path in ("/admin/", "/admin/idempotency/"):
        assert PAGE.encode() in watcher.get(path).content
        assert PAGE.encode() not in viewer.get(path).content
    lists = staff("view_operations", "view_idempotencykey", "view_outboxmessage", name="lists")
    for model in ("idempotencykey", "outboxmessage"):
        page = lists.get(f"/admin/idempotency/{model}/").content.decode()
        assert re.search(rf'<ul class="object-tools">.*href="{PAGE}"', page, re.DOTALL)
    assert f'href="{PAGE}"' not in viewer.get("/admin/idempotency/idempotencykey/").content.decode()


def test_nothing_can_be_changed_there(root: Client, make_key: MakeKey) -> None:
    key = make_key()
    assert root.get(f"{PAGE}add/").status_code == 404
    assert root.get(f"{PAGE}{key.pk}/change/").status_code == 404
    root.post(PAGE, {"action": "delete_selected", "_selected_action": [key.pk], "post": "yes"})
    assert IdempotencyKey.objects.get() == key


@pytest.mark.postgresql
def test_it_counts_only_what_is_open_and_says_how_long_each_statement_took(
    watcher: Client, make_key: MakeKey
) -> None:
    make_key("succeeded")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE idempotency_idempotencykey")
    with CaptureQueriesContext(connection) as queries:
        text = text_of(watcher)
    counting = [one["sql"] for one in queries if "COUNT(" in one["sql"].upper()]
    assert not [sql for sql in counting if "idempotency_" in sql and "LIMIT" not in sql]
    assert re.search(r"\d+ queries, [\d.]+ ms", text)
    assert "Statement" in text
    assert "EXPLAIN (FORMAT json)" in text


# Traffic


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day with a thousand requests a minute, and a bad last hour."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    counts = {
        "executed": [1000] * MINUTES,
        "replayed": [0] * (MINUTES - 60) + [500] * 60,
        "takeover": [0] * (MINUTES - 1) + [3],
    }
    took = {"executed": {0.005: 900, 0.25: 90, float("inf"): 10}}
    shown = Traffic(now, now - timedelta(days=1), counts, hour={}, day=took)
    monkeypatch.setattr(traffic, "read", lambda: shown)


@pytest.mark.usefixtures("busy")
def test_requests_are_drawn_and_told_in_numbers(watcher: Client) -> None:
    text = text_of(watcher)
    assert "Executed 60,000 in the last hour, 1,440,000 in a day at most 1,000 a minute" in text
    assert "Taken over 3 in the last hour, 3 in a day at most 0.3 a minute" in text
    assert "Retries: at least 33.3 % of the requests in the last hour, 2.0 % in a day." in text
    assert "11:00 - 12:00 60,000 30,000 0 3 0" in text
    content = watcher.get(PAGE).content.decode()
    assert content.count('role="img"') >= 5
    named = re.findall(r'role="img" aria-labelledby="([^"]+)"', content)
    assert all(f'id="{name}"' in content for name in named)


@pytest.mark.usefixtures("busy")
def test_percentiles_are_bounds_within_which_requests_were_answered(watcher: Client) -> None:
    assert "executed 1,000 ≤ 5 ms ≤ 250 ms ≤ 250 ms" in text_of(watcher)


def test_without_redis_it_says_how_to_have_the_series(watcher: Client, configure: Any) -> None:
    configure(REDIS_URL=None)
    assert "set IDEMPOTENCY['REDIS_URL'] and install the extras" in text_of(watcher)


def test_dependencies_are_told_with_their_breakers(
    watcher: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (
        Dependency("gateway:a", (Breaker("charge", BreakerState.OPEN, 4.2),), (120, 12)),
        Dependency("gateway:b", (Breaker("charge", BreakerState.CLOSED, None),), None),
    )
    monkeypatch.setattr(overview, "read_dependencies", lambda: Dependencies(found, "A note."))
    text = text_of(watcher)
    assert "gateway:a fails, and is not called for a while." in text
    assert "gateway:a charge open: probes in 5 s 120 12" in text
    assert "gateway:b charge closed - -" in text
    assert "A note." in text


# Charts


def test_the_highest_column_fills_the_picture_and_the_lowest_can_be_seen() -> None:
    bars = columns([0, 1, 1000])
    assert [bar.height for bar in bars] == [0, 2, HEIGHT]
    assert bars[-1].y == 0
    assert bars[-1].x + bars[-1].width <= WIDTH
    assert columns([]) == []
    assert [bar.height for bar in columns([0, 0])] == [0, 0]


def test_an_outline_has_a_bar_for_each_value_that_is_something() -> None:
    assert outline([0, 0]) == ""
    assert outline([0, 5, 0, 5]).count("M") == 2


def test_averages_are_of_so_many_values_each() -> None:
    assert averages([1, 3, 10, 20], 2) == [2, 15]
