"""The page of one key: its story, what a retry gets, and what is hidden from whom."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from tests.integration.portable.admin.rows import CREATED, JSON

MakeKey = Callable[..., IdempotencyKey]
MakeEvent = Callable[..., KeyEvent]
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def text_of(client: Client, key: IdempotencyKey) -> str:
    """The page as a person reads it."""
    main = raw(client, key).split("<main")[1].split("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def raw(client: Client, key: IdempotencyKey) -> str:
    return raw_page(client, f"{key.pk}/change/")


def raw_page(client: Client, path: str) -> str:
    page = client.get(f"/admin/idempotency/idempotencykey/{path}")
    assert page.status_code == 200
    return str(page.content.decode())


def test_the_page_tells_the_story_in_order(
    viewer: Client, make_key: MakeKey, make_event: MakeEvent
) -> None:
    key = make_key("succeeded", answer=CREATED, attempt=3, age=timedelta(minutes=10))
    make_event(key, "reclaimed", at=key.created_at + timedelta(seconds=0.2))
    make_event(key, "takeover", at=key.created_at + timedelta(seconds=0.5), attempt=3)
    page = text_of(viewer, key)
    told = ["First request", "Reclaimed", "attempt 3 took over", "Answered 201", "Expires"]
    assert [page.find(part) for part in told] == sorted(page.find(part) for part in told)
    assert "(10 min 0 s ago)" in page
    assert "(in 20 h 0 min)" in page
    assert "A retry with the same request gets the stored 201, byte for byte." in page
    assert "Any other request with this key gets 422 idempotency_key_reused." in page


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("processing", {}, "409 idempotency_key_in_use"),
        ("processing", {"lease": timedelta(minutes=-1)}, "runs it again, as attempt 2"),
        ("failed", {"attempt": 4, "failure": "IntegrityError"}, "runs it again, as attempt 5"),
        ("in_doubt", {}, "409 outcome_in_doubt until it is settled"),
        ("succeeded", {"expires": timedelta(minutes=-1)}, "runs as a new one"),
        ("succeeded", {}, "409 response_not_stored"),
    ],
)
def test_the_page_says_what_a_retry_gets_now(
    viewer: Client, make_key: MakeKey, state: str, fields: dict[str, Any], expected: str
) -> None:
    key = make_key(state, **fields)
    page = text_of(viewer, key)
    assert expected in page
    assert key.failure in page


def test_a_body_is_hidden_without_its_own_permission(
    viewer: Client, staff: Callable[..., Client], make_key: MakeKey
) -> None:
    key = make_key("succeeded", answer=CREATED)
    assert "ch_1" in text_of(viewer, key)  # in the Location
    assert '"id"' not in text_of(viewer, key)
    assert "Hidden: seeing bodies needs the permission" in text_of(viewer, key)
    auditor = staff("view_idempotencykey", "view_response_body", name="auditor")
    assert '{ "id": "ch_1" }' in text_of(auditor, key)
    assert "Hidden: seeing bodies" not in text_of(auditor, key)


def test_what_an_operation_keeps_is_hidden_like_a_body(
    viewer: Client, staff: Callable[..., Client], make_key: MakeKey
) -> None:
    context = {"operation": "payments.charge", "ttl": 1, "context": {"source": "tok_visa"}}
    key = make_key("in_doubt", recovery_point="prepared", context=context)
    assert "payments.charge" in text_of(viewer, key)
    assert "tok_visa" not in text_of(viewer, key)
    auditor = staff("view_idempotencykey", "view_response_body", name="auditor")
    assert "tok_visa" in text_of(auditor, key)


def test_secret_headers_are_hidden_from_everybody(root: Client, make_key: MakeKey) -> None:
    headers = (*JSON, ("X-Api-Key", "hunter2"), ("ETag", '"v1"'))
    key = make_key("succeeded", answer=RecordedResponse(200, headers, b"{}"))
    page = text_of(root, key)
    assert "hunter2" not in page
    assert "X-Api-Key hidden" in page
    assert 'ETag "v1"' in page


def test_a_stored_page_is_shown_as_text_and_never_run(root: Client, make_key: MakeKey) -> None:
    headers = (("Content-Type", "text/html"), ("X-Note", ATTACK))
    key = make_key("succeeded", answer=RecordedResponse(200, headers, ATTACK.encode()))
    assert ATTACK in unescape(raw(root, key))
    assert "<script>alert" not in raw(root, key)
    assert "<img src=x" not in raw(root, key)


def test_markup_from_outside_is_text_wherever_it_is_shown(
    root: Client, make_key: MakeKey, make_event: MakeEvent
) -> None:
    key = make_key(
        "in_doubt",
        key=ATTACK,
        route=ATTACK,
        tenant=ATTACK,
        failure=ATTACK,
        recovery_point=ATTACK,
        context={"operation": ATTACK, ATTACK: ATTACK},
    )
    make_event(key, "force_failed", actor=ATTACK, reason=ATTACK, data={"from": ATTACK})
    make_event(key, "reused", data={"previous_id": ATTACK})
    make_event(key, "unheard_of", reason=ATTACK)
    for page in (
        raw(root, key),
        root.get("/admin/idempotency/idempotencykey/").content.decode(),
        root.get("/admin/idempotency/keyevent/").content.decode(),
        root.get(f"/admin/idempotency/idempotencykey/force-fail/?key={key.pk}").content.decode(),
    ):
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def test_a_binary_body_is_shown_as_bytes(root: Client, make_key: MakeKey) -> None:
    pdf = RecordedResponse(200, (("Content-Type", "application/pdf"),), b"%PDF-1.7\x00\xff" * 9)
    page = text_of(root, make_key("succeeded", answer=pdf))
    assert "00000000 25 50 44 46 2d 31 2e 37 00 ff" in page
    assert "90 bytes" in page


def test_a_page_reads_a_bounded_number_of_rows_by_index(
    root: Client, make_key: MakeKey, make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotency.admin.keys.SHOWN_EVENTS", 3)
    key = make_key("succeeded", answer=CREATED)
    for attempt in range(1, 6):
        make_event(key, "takeover", attempt=attempt)
    with CaptureQueriesContext(connection) as queries:
        page = text_of(root, key)
    sql = [query["sql"] for query in queries if 'FROM "idempotency_' in query["sql"]]
    assert len(sql) == 3, sql  # the key, its answer, its events
    assert not [statement for statement in sql if "COUNT(" in statement.upper()]
    [events] = [statement for statement in sql if "idempotency_keyevent" in statement]
    assert "LIMIT 4" in events
    [answer] = [statement for statement in sql if "idempotency_storedresponse" in statement]
    assert '"day" = ' in answer
    assert "Older events are in the list of events." in page
    assert [f"attempt {number} took over" in page for number in range(1, 6)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_force_fail_is_offered_only_for_open_keys_and_only_to_those_who_may(
    operator: Client, viewer: Client, make_key: MakeKey
) -> None:
    button = "Force-fail…"
    assert button in text_of(operator, make_key())
    assert button in text_of(operator, make_key("in_doubt"))
    assert button not in text_of(operator, make_key("succeeded", answer=CREATED))
    assert button not in text_of(operator, make_key("failed"))
    assert button not in text_of(viewer, make_key())
    assert "Your account may not force-fail keys" in text_of(viewer, make_key())


def test_the_way_back_keeps_the_filters_of_the_list(operator: Client, make_key: MakeKey) -> None:
    key = make_key()
    filters = "_changelist_filters=attention%3Dstuck"
    page = raw_page(operator, f"{key.pk}/change/?{filters}")
    [link] = re.findall(r'href="[^"]*force-fail/\?([^"]*)"', page)
    assert parse_qs(unescape(link)) == {
        "key": [str(key.pk)],
        "_changelist_filters": ["attention=stuck"],
    }


def test_a_key_that_was_pruned_meanwhile_leads_back(viewer: Client, make_key: MakeKey) -> None:
    key = make_key("succeeded")
    number = key.pk
    key.delete()
    page = viewer.get(f"/admin/idempotency/idempotencykey/{number}/change/", follow=True)
    assert page.status_code == 200
    assert b"Perhaps it was deleted" in page.content


def test_the_answer_of_an_earlier_generation_is_not_shown(root: Client, make_key: MakeKey) -> None:
    old = make_key("succeeded", answer=CREATED)
    assert StoredResponse.objects.filter(key_id=old.pk).exists()
    page = text_of(root, make_key("processing"))
    assert "Stored response There is none." in page
