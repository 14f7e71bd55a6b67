"""The keys' list: what it shows, what it finds, and what it never asks the database."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.models.expressions import RawSQL
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import NoReverseMatch, reverse

from idempotency import search
from idempotency.admin import IdempotencyKeyAdmin, changelists
from idempotency.core.keys import log_digest
from idempotency.models import IdempotencyKey, KeyEvent
from idempotency.stores import bounds, walks

MakeKey = Callable[..., IdempotencyKey]
LIST = "/admin/idempotency/idempotencykey/"
EVENTS = "/admin/idempotency/keyevent/"
OVER = timedelta(minutes=-2)


def keys_shown(client: Client, query: str = "") -> list[str]:
    page = client.get(LIST + query)
    assert page.status_code == 200, page
    return [key.key for key in page.context["cl"].result_list]


def link(page: Any, rel: str) -> str | None:
    found = re.search(rf'<a href="([^"]*)" rel="{rel}"', page.content.decode())
    return None if found is None else unescape(found[1])


def about_keys(queries: CaptureQueriesContext) -> list[str]:
    """Without what asks the planner."""
    statements = [query["sql"] for query in queries if "idempotency_" in query["sql"]]
    return [sql for sql in statements if not sql.startswith("EXPLAIN")]


def test_each_column_says_how_the_key_stands(viewer: Client, make_key: MakeKey) -> None:
    make_key(key="running", attempt=2)
    make_key(key="abandoned", lease=OVER)
    make_key("in_doubt", key="unclear")
    make_key("succeeded", key="done", expires=timedelta(hours=-1))

    rows = rows_of(viewer.get(LIST).content.decode())

    assert "processing running age 3 min lease 25 s attempt 2 POST /v1/charges acct_acme" in rows[3]
    assert "processing stuck abandoned" in rows[2]
    assert "lease over for 2 min" in rows[2]
    assert "in doubt unclear" in rows[1]
    assert "succeeded expired done" in rows[0]


def rows_of(page: str) -> list[str]:
    """The rows of the list as a person reads them."""
    rows = page.split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:-1]
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]


def test_paging_never_counts_and_reads_one_page_at_a_time(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdempotencyKeyAdmin, "list_per_page", 3)
    for number in range(8):
        make_key(key=f"key-{number}")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = viewer.get(LIST)
    sql = about_keys(queries)
    assert not [statement for statement in sql if "COUNT(" in statement.upper()]
    listing = [statement for statement in sql if '"digest"' in statement]
    assert len(listing) == 1
    assert 'ORDER BY "idempotency_idempotencykey"."id" DESC LIMIT 4' in listing[0]
    assert len(sql) <= 3, sql  # the page, the greatest id, the routes of the newest keys
    assert len(queries) <= 12
    assert link(page, "prev") is None


def test_every_key_is_on_exactly_one_page_both_ways(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdempotencyKeyAdmin, "list_per_page", 3)
    for number in range(8):
        make_key(key=f"key-{number}")
    pages, query = [], ""
    while True:
        page = viewer.get(LIST + query)
        pages.append([key.key for key in page.context["cl"].result_list])
        older = link(page, "next")
        if older is None:
            break
        query = older
    assert pages == [["key-7", "key-6", "key-5"], ["key-4", "key-3", "key-2"], ["key-1", "key-0"]]

    newer = link(page, "prev")
    assert newer is not None
    assert keys_shown(viewer, newer) == pages[1]
    first = link(viewer.get(LIST + newer), "prev")
    assert first is not None
    assert keys_shown(viewer, first) == pages[0]


def test_keys_that_arrive_meanwhile_do_not_shift_the_older_page(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdempotencyKeyAdmin, "list_per_page", 2)
    for number in range(4):
        make_key(key=f"key-{number}")
    older = link(viewer.get(LIST), "next")
    make_key(key="late")
    assert older is not None
    assert keys_shown(viewer, older) == ["key-1", "key-0"]


def test_changing_a_filter_leaves_the_place_in_the_list(viewer: Client, make_key: MakeKey) -> None:
    key = make_key()
    page = viewer.get(f"{LIST}?older={key.pk + 1}").content.decode()
    choices = re.findall(r'href="(\?[^"]*attention=[^"]*)"', page)
    assert choices
    assert not [choice for choice in choices if "older" in choice]


@pytest.mark.parametrize("place", ["x", "", "1,2", "-", "9" * 40])
def test_a_place_that_is_none_does_no_harm(viewer: Client, make_key: MakeKey, place: str) -> None:
    make_key(key="there")
    page = viewer.get(LIST, {"older": place}, follow=True)
    assert page.status_code == 200
    assert b"there" in page.content


@pytest.mark.parametrize("query", ["route=%00", "tenant=%00", "q=%00", "attempt=x", "nonsense=1"])
def test_a_filter_that_is_none_does_no_harm(viewer: Client, make_key: MakeKey, query: str) -> None:
    make_key()
    assert viewer.get(f"{LIST}?{query}", follow=True).status_code == 200


@pytest.mark.parametrize("order", ["1", "-2", "3.4", "6", "-9"])
def test_no_parameter_orders_by_a_column_without_an_index(
    viewer: Client, make_key: MakeKey, order: str
) -> None:
    make_key(key="older", route="POST /z", tenant="z")
    make_key(key="newer", route="POST /a", tenant="a")
    assert keys_shown(viewer, f"?o={order}") == ["newer", "older"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?attention=stuck", ["stuck"]),
        ("?attention=taken_over", ["second"]),
        ("?attention=in_doubt", ["doubtful"]),
        ("?attention=nonsense", ["failed", "done", "doubtful", "second", "stuck", "running"]),
        ("?state__exact=processing", ["second", "stuck", "running"]),
        ("?state__exact=failed", ["failed"]),
        ("?route=POST+%2Fv1%2Frefunds", ["done"]),
        ("?route=POST+%2Fv1%2Fcharges&attention=stuck", ["stuck"]),
    ],
)
def test_filters_narrow_the_list(
    viewer: Client, make_key: MakeKey, query: str, expected: list[str]
) -> None:
    make_key(key="running")
    make_key(key="stuck", lease=OVER)
    make_key(key="second", attempt=2)
    make_key("in_doubt", key="doubtful")
    make_key("succeeded", key="done", route="POST /v1/refunds")
    make_key("failed", key="failed")
    assert keys_shown(viewer, query) == expected


def test_the_route_filter_offers_the_routes_of_the_newest_keys_and_keeps_a_chosen_one(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(route="POST /rare")
    make_key(route="POST /b")
    make_key(route="POST /a")
    monkeypatch.setattr(search, "RECENT_KEYS", 2)

    def offered(query: str) -> list[str]:
        specs = viewer.get(LIST + query).context["cl"].filter_specs
        return [
            value for spec in specs if spec.title == "route" for value, _ in spec.lookup_choices
        ]

    assert offered("") == ["POST /a", "POST /b"]
    assert offered("?route=POST+%2Frare") == ["POST /a", "POST /b", "POST /rare"]


def test_search_finds_the_exact_key_only(viewer: Client, make_key: MakeKey) -> None:
    make_key(key="order-1")
    make_key(key="order-11")
    assert keys_shown(viewer, "?q=order-1") == ["order-1"]
    assert keys_shown(viewer, "?q=ORDER-1") == []
    assert keys_shown(viewer, "?q=order") == []
    assert keys_shown(viewer, "?q=%25") == []


def test_search_by_account_and_key_goes_through_the_digest(
    viewer: Client, make_key: MakeKey
) -> None:
    make_key(key="order-1", tenant="acct_globex")
    make_key(key="order-1", tenant="acct_acme")
    make_key(key="order-1", tenant="acct_acme", route="POST /v1/refunds")
    with CaptureQueriesContext(connection) as queries:
        page = viewer.get(LIST, {"q": "acct_acme order-1"})
    found = page.context["cl"].result_list
    assert [(key.tenant, key.route) for key in found] == [
        ("acct_acme", "POST /v1/refunds"),
        ("acct_acme", "POST /v1/charges"),
    ]
    [listing] = [sql for sql in about_keys(queries) if "LIMIT 51" in sql]
    assert '"digest" IN' in listing
    assert "LIKE" not in listing.upper()
    assert keys_shown(viewer, "?q=acct_acme+order-2") == []


def test_search_by_the_digest_that_logs_show(viewer: Client, make_key: MakeKey) -> None:
    key = make_key(key="secret-of-the-client")
    make_key()
    shown = log_digest(bytes(key.digest))
    assert keys_shown(viewer, f"?q={shown}") == ["secret-of-the-client"]
    assert keys_shown(viewer, f"?q={shown.upper()}") == ["secret-of-the-client"]
    assert keys_shown(viewer, f"?q={bytes(key.digest).hex()}") == ["secret-of-the-client"]
    assert keys_shown(viewer, f"?q={shown[:11]}") == []


def test_a_key_that_looks_like_a_digest_is_found_all_the_same(
    viewer: Client, make_key: MakeKey
) -> None:
    make_key(key="0123456789abcdef")
    assert keys_shown(viewer, "?q=0123456789abcdef") == ["0123456789abcdef"]


@pytest.mark.postgresql
def test_a_query_that_takes_too_long_is_given_up(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(key="there")
    ordinary = IdempotencyKeyAdmin.get_queryset

    def slow(self: Any, request: Any) -> Any:
        # For ever, in effect: only the bound ends it.
        return ordinary(self, request).annotate(slow=RawSQL("pg_sleep(600)::text", []))

    with monkeypatch.context() as patch:
        patch.setattr(IdempotencyKeyAdmin, "get_queryset", slow)
        patch.setattr(IdempotencyKeyAdmin, "statement_timeout", timedelta(milliseconds=50))
        page = viewer.get(LIST)
    assert page.status_code == 200
    assert b"The database gave the query up" in page.content
    assert b"there" not in page.content
    assert keys_shown(viewer) == ["there"]


@pytest.mark.postgresql
def test_the_bound_of_the_list_does_not_outlive_it(viewer: Client) -> None:
    def bound() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return str(cursor.fetchone()[0])

    before = bound()
    assert keys_shown(viewer) == []
    assert bound() == before


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("", "idempotency_idempotencykey_pkey"),
        ("?older=4000", "idempotency_idempotencykey_pkey"),
        ("?attention=stuck", "idempotency_key_lease"),
        ("?attention=taken_over", "idempotency_key_lease"),
        ("?attention=in_doubt", "idempotency_key_lease"),
        ("?state__exact=in_doubt", "idempotency_key_lease"),
        ("?q=00ff00ff00ff", "idempotency_idempotencykey_digest_key"),
        ("?q=acct_7+nobody", "idempotency_idempotencykey_digest_key"),
    ],
)
def test_an_index_leads_to_what_an_operator_looks_for(
    viewer: Client, make_key: MakeKey, query: str, index: str
) -> None:
    template = make_key("succeeded", completed_at=None)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_idempotencykey (digest, key, route, tenant, fingerprint, "
            "fingerprint_version, state, owner, attempt, resumes, recovery_point, failure, "
            "created_at, expires_at, response_day) "
            "SELECT sha256(i::text::bytea), i::text, route, 'acct_' || mod(i, 9), fingerprint, 1, "
            "state, owner, 1, 0, '', '', created_at, expires_at, response_day "
            "FROM idempotency_idempotencykey, generate_series(1, 8000) AS i WHERE id = %s",
            [template.pk],
        )
        cursor.execute("ANALYZE idempotency_idempotencykey")
    make_key("in_doubt")
    with CaptureQueriesContext(connection) as queries:
        viewer.get(LIST + query)
    # The page itself, or where nothing is found by index, the look that came before it.
    looked = [sql for sql in about_keys(queries) if " LIMIT " in sql]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {looked[0]}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


@pytest.mark.postgresql
def test_a_filter_without_an_index_is_looked_for_as_long_as_there_is_time(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CHEAP", -1)
    monkeypatch.setattr(walks, "STEP", 2)
    monkeypatch.setattr(IdempotencyKeyAdmin, "list_per_page", 2)
    keys = [
        make_key("failed" if number in (0, 1, 2, 9) else "succeeded", key=f"key-{number}")
        for number in range(10)
    ]

    def page_with_time_for(steps: int, query: str) -> Any:
        clock = count(0)
        monkeypatch.setattr(walks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(changelists, "WALKING", timedelta(seconds=steps + 0.5))
        return viewer.get(LIST + query)

    def shown(page: Any) -> list[str]:
        return [key.key for key in page.context["cl"].result_list]

    page = page_with_time_for(2, "?state__exact=failed")
    assert shown(page) == ["key-9"]
    assert f"from number {keys[6].pk} on were looked at" in page.content.decode()
    older = link(page, "next")
    assert older is not None

    page = page_with_time_for(2, older)
    assert shown(page) == ["key-2"]
    page = page_with_time_for(9, link(page, "next") or "")
    assert shown(page) == ["key-1", "key-0"]
    assert link(page, "next") is None
    assert "were looked at" not in page.content.decode()
    # Backwards it would be as far: to the newest page.
    newer = link(page, "prev")
    assert newer is not None
    assert "newer=" not in newer

    page = page_with_time_for(9, "?state__exact=failed")
    assert shown(page) == ["key-9", "key-2"]
    assert shown(page_with_time_for(9, link(page, "next") or "")) == ["key-1", "key-0"]


@pytest.mark.postgresql
def test_a_search_of_a_large_table_that_finds_nothing_shows_nothing(
    viewer: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CHEAP", -1)
    make_key()
    assert keys_shown(viewer, "?q=no-such-key") == []


def test_markup_in_a_key_is_text(viewer: Client, make_key: MakeKey) -> None:
    make_key(key="<script>alert(1)</script>", route='POST /"><img src=x>', tenant="<b>bold</b>")
    page = viewer.get(LIST, {"q": "<script>alert(1)</script>"}).content
    assert b"&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert b"<script>alert" not in page
    assert b"<img src=x" not in page
    assert b"<b>bold" not in page


def test_the_list_needs_the_permission_to_view_keys(staff: Callable[..., Client]) -> None:
    assert staff("force_fail_idempotencykey").get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 302


def test_stored_responses_have_no_list_of_their_own(root: Client) -> None:
    with pytest.raises(NoReverseMatch):
        reverse("admin:idempotency_storedresponse_changelist")
    assert root.get("/admin/idempotency/storedresponse/").status_code == 404


@pytest.mark.parametrize("path", [LIST, EVENTS])
def test_nothing_can_be_added_changed_or_deleted_whatever_the_rights(
    root: Client, make_key: MakeKey, path: str
) -> None:
    key = make_key("succeeded")
    assert root.get(f"{path}add/").status_code in (403, 404)
    assert b"delete_selected" not in root.get(path).content
    if path == LIST:
        assert root.post(f"{LIST}{key.pk}/change/", {"state": "failed"}).status_code == 403
        assert root.get(f"{LIST}{key.pk}/delete/").status_code == 403
        assert root.post(f"{LIST}{key.pk}/delete/", {"post": "yes"}).status_code == 403
    data = {"action": "delete_selected", "_selected_action": [key.pk], "post": "yes"}
    root.post(path, data)
    assert IdempotencyKey.objects.get().state == "succeeded"


def test_the_events_of_one_key_are_listed_without_counting(
    viewer: Client, make_key: MakeKey, make_event: Callable[..., KeyEvent]
) -> None:
    key, other = make_key(), make_key()
    make_event(key, "takeover", attempt=2)
    make_event(key, "force_failed", actor="maria", reason="<i>asked</i> the gateway")
    make_event(other, "reclaimed", reason="of another key")
    with CaptureQueriesContext(connection) as queries:
        page = viewer.get(EVENTS, {"key_id": key.pk})
    kinds = [event.kind for event in page.context["cl"].result_list]
    assert kinds == ["force_failed", "takeover"]
    assert b"&lt;i&gt;asked&lt;/i&gt;" in page.content
    sql = about_keys(queries)
    assert not [statement for statement in sql if "COUNT(" in statement.upper()]
    assert [
        event.key_id for event in viewer.get(EVENTS, {"q": str(other.pk)}).context["cl"].result_list
    ] == [other.pk]
    assert viewer.get(EVENTS, {"q": "no number"}).context["cl"].result_list == []


def test_events_page_by_day_and_number(
    viewer: Client,
    make_key: MakeKey,
    make_event: Callable[..., KeyEvent],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from idempotency.admin import KeyEventAdmin

    monkeypatch.setattr(KeyEventAdmin, "list_per_page", 2)
    key = make_key()
    today = [make_event(key, "takeover", attempt=number) for number in range(3)]
    tomorrow = today[0].day + timedelta(days=1)
    late = make_event(key, "reclaimed", day=tomorrow)
    early = make_event(key, "takeover", attempt=9)
    shown, query = [], ""
    while query is not None:
        page = viewer.get(EVENTS + query)
        shown.append([event.pk for event in page.context["cl"].result_list])
        query = link(page, "next")
    numbers = [event.pk for event in today]
    assert shown == [[late.pk, early.pk], [numbers[2], numbers[1]], [numbers[0]]]


def test_an_event_has_no_page_of_its_own(root: Client, make_key: MakeKey) -> None:
    with pytest.raises(NoReverseMatch):
        reverse("admin:idempotency_keyevent_change", args=[1])
