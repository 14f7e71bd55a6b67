"""Force-fail: who may, what is asked, and what is written; and never against a newer owner."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError, transaction
from django.test import Client

from idempotency.admin import IdempotencyKeyAdmin
from idempotency.core.decisions import Claim, Lease, Replay, Won
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import Scope
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import get_store
from tests.integration.portable.admin.rows import CREATED, token

MakeKey = Callable[..., IdempotencyKey]
LIST = "/admin/idempotency/idempotencykey/"
FORCE_FAIL = f"{LIST}force-fail/"
FREE = {"outcome": "free", "reason": "the worker is gone"}
FINAL = {"outcome": "final", "reason": "the gateway says it never came"}


def submit(client: Client, *keys: IdempotencyKey, **choice: Any) -> Any:
    """Press the button of a page that was made when the keys were as they are given here."""
    return client.post(FORCE_FAIL, {"token": [token(key) for key in keys], **choice})


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def claim(key: IdempotencyKey) -> Any:
    """What the same request gets when it is sent again."""
    scope = Scope(key.route, key.tenant, key.key)
    return get_store().claim(
        Claim(scope, bytes(key.fingerprint), 1, uuid.uuid4(), timedelta(seconds=30))
    )


def lease_of(key: IdempotencyKey) -> Lease:
    scope = Scope(key.route, key.tenant, key.key)
    return Lease(key.pk, key.owner, key.attempt, scope.digest, scope, key.response_day)


def nothing_written() -> bool:
    return not (LogEntry.objects.exists() or KeyEvent.objects.exists())


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        ([], False),
        (["view_idempotencykey"], False),
        (["force_fail_idempotencykey"], False),
        (["view_idempotencykey", "change_idempotencykey", "delete_idempotencykey"], False),
        (["view_idempotencykey", "view_response_body"], False),
        (["view_idempotencykey", "force_fail_idempotencykey"], True),
    ],
)
def test_it_takes_the_permission_to_force_fail_and_the_one_to_view(
    staff: Callable[..., Client], make_key: MakeKey, permissions: list[str], allowed: bool
) -> None:
    client, key = staff(*permissions), make_key()
    assert client.get(FORCE_FAIL, {"key": key.pk}).status_code == (200 if allowed else 403)
    assert submit(client, key, **FREE).status_code == (302 if allowed else 403)
    key.refresh_from_db()
    assert key.state == ("failed" if allowed else "processing")
    assert nothing_written() is not allowed


def test_a_stranger_is_asked_to_log_in(make_key: MakeKey) -> None:
    answer = submit(Client(), make_key(), **FREE)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/")
    assert nothing_written()


def test_a_form_of_another_site_is_refused(operator: Client, make_key: MakeKey) -> None:
    key, strict = make_key(), Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert submit(strict, key, **FREE).status_code == 403
    assert nothing_written()


def test_looking_at_the_page_that_asks_changes_nothing(operator: Client, make_key: MakeKey) -> None:
    key = make_key(key="order-1")
    page = operator.get(FORCE_FAIL, {"key": key.pk}).content.decode()
    assert "This key will be ended" in page
    assert "order-1" in page
    assert f'value="{token(key)}"' in page
    assert page.count('type="radio"') == 2
    assert " checked" not in page
    key.refresh_from_db()
    assert key.state == "processing"
    assert nothing_written()


@pytest.mark.parametrize(
    "choice",
    [
        {"outcome": "free"},
        {"outcome": "free", "reason": "   "},
        {"outcome": "free", "reason": "x" * 501},
        {"reason": "a reason"},
        {"outcome": "both", "reason": "a reason"},
    ],
)
def test_a_choice_and_a_typed_reason_are_demanded(
    operator: Client, make_key: MakeKey, choice: dict[str, str]
) -> None:
    key = make_key()
    answer = submit(operator, key, **choice)
    assert answer.status_code == 200
    assert "errornote" in answer.content.decode()
    assert token(key) in answer.content.decode()
    key.refresh_from_db()
    assert key.state == "processing"
    assert nothing_written()


def test_free_for_retry_lets_the_same_request_run_again(
    operator: Client, make_key: MakeKey
) -> None:
    key = make_key(attempt=2)
    answer = submit(operator, key, **FREE)
    assert answer["Location"] == f"{LIST}{key.pk}/change/"
    assert "Force-failed 1 key." in said(answer)
    ended = IdempotencyKey.objects.get(pk=key.pk)
    assert (ended.state, ended.failure) == ("failed", "the worker is gone")
    decision = claim(key)
    assert isinstance(decision, Won)
    assert decision.lease.attempt == 3


def test_freed_an_operation_resumes_at_its_recovery_point(
    operator: Client, make_key: MakeKey
) -> None:
    context = {"operation": "payments.charge", "ttl": 1.0, "context": {"charge": 1}}
    key = make_key("in_doubt", recovery_point="prepared", context=context)
    submit(operator, key, **FREE)
    decision = claim(key)
    assert isinstance(decision, Won)
    assert (decision.lease.key_id, decision.lease.recovery_point) == (key.pk, "prepared")
    assert decision.lease.context == context


@pytest.mark.parametrize("state", ["processing", "in_doubt"])
def test_final_gives_every_retry_the_same_410(
    operator: Client, make_key: MakeKey, state: str
) -> None:
    key = make_key(state)
    submit(operator, key, **FINAL)
    decision = claim(key)
    assert isinstance(decision, Replay)
    assert decision.response is not None
    assert decision.response.status == 410
    assert dict(decision.response.headers)["Content-Type"] == "application/problem+json"
    document = json.loads(decision.response.body or b"")
    assert document["code"] == "force_failed"
    assert document["retry"] == "new_key"
    assert document["status"] == 410
    assert document["type"].endswith("/problems/force_failed/")
    assert "gateway" not in json.dumps(document)  # the operator's reason stays inside
    assert claim(key) == decision


def test_the_stored_410_is_replayed_over_http(operator: Client, make_key: MakeKey) -> None:
    from idempotency.http.recording import respond

    key = make_key()
    submit(operator, key, **FINAL)
    replay = respond(claim(key).response, replayed=True)
    assert replay.status_code == 410
    assert replay["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("choice", [FREE, FINAL])
def test_it_is_written_to_the_admin_log_and_to_the_keys_events(
    operator: Client, make_key: MakeKey, choice: dict[str, str]
) -> None:
    key = make_key(key="order-1", attempt=2)
    submit(operator, key, **choice)
    event = KeyEvent.objects.get()
    assert (event.key_id, event.kind, event.attempt) == (key.pk, "force_failed", 2)
    assert (event.actor, event.reason) == ("operator", choice["reason"])
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("operator", str(key.pk))
    assert choice["reason"] in entry.change_message
    assert ("final" in entry.change_message) is (choice is FINAL)
    history = operator.get(f"{LIST}{key.pk}/history/").content.decode()
    assert choice["reason"] in history
    story = operator.get(f"{LIST}{key.pk}/change/").content.decode()
    assert f"An operator ended attempt 2: {choice['reason']}" in story


def test_it_is_refused_when_another_owner_took_over_meanwhile(
    operator: Client, make_key: MakeKey
) -> None:
    key = make_key(lease=timedelta(seconds=-1))
    page = operator.get(FORCE_FAIL, {"key": key.pk}).content.decode()
    assert isinstance(claim(key), Won)  # between the page and the button
    KeyEvent.objects.all().delete()
    assert token(key) in page

    answer = submit(operator, key, **FINAL)

    assert "changed since you looked. It is now processing, attempt 2." in said(answer)
    now = IdempotencyKey.objects.get(pk=key.pk)
    assert (now.state, now.attempt) == ("processing", 2)
    assert nothing_written()
    assert not StoredResponse.objects.exists()


@pytest.mark.parametrize("choice", [FREE, FINAL])
def test_it_is_refused_when_the_same_attempt_passed_its_recovery_point_meanwhile(
    operator: Client, make_key: MakeKey, choice: dict[str, str]
) -> None:
    # The page said that nothing can have happened outside; now something can have.
    key = make_key()
    context = {"operation": "payments.charge", "ttl": 1.0, "context": {}}
    get_store().record_recovery_point(lease_of(key), "prepared", context)
    answer = submit(operator, key, **choice)
    assert "changed since you looked" in said(answer)
    assert "It has passed “prepared”." in said(answer)
    assert IdempotencyKey.objects.get().state == "processing"
    assert nothing_written()


def test_it_is_refused_when_the_same_attempt_fell_into_doubt_meanwhile(
    operator: Client, make_key: MakeKey
) -> None:
    key = make_key(recovery_point="prepared")
    get_store().doubt(lease_of(key), "timeout")
    KeyEvent.objects.all().delete()
    answer = submit(operator, key, **FREE)
    assert "It is now in doubt, attempt 1." in said(answer)
    assert IdempotencyKey.objects.get().state == "in_doubt"
    assert nothing_written()


def test_it_is_refused_when_the_work_completed_meanwhile(
    operator: Client, make_key: MakeKey
) -> None:
    key = make_key()
    get_store().complete(lease_of(key), CREATED, timedelta(days=1))
    answer = submit(operator, key, **FREE)
    assert "It is now succeeded" in said(answer)
    decision = claim(key)
    assert isinstance(decision, Replay)
    assert decision.response == CREATED
    assert nothing_written()


def test_it_is_refused_when_the_key_was_released_meanwhile(
    operator: Client, make_key: MakeKey
) -> None:
    key = make_key()
    get_store().release(lease_of(key))
    answer = submit(operator, key, **FREE)
    assert "1 key is not there any more." in said(answer)
    assert nothing_written()


@pytest.mark.parametrize("choice", [FREE, FINAL])
def test_a_live_worker_cannot_complete_a_key_that_was_force_failed(
    operator: Client, make_key: MakeKey, choice: dict[str, str]
) -> None:
    key = make_key()
    submit(operator, key, **choice)
    for late in (
        lambda: get_store().complete(lease_of(key), CREATED, timedelta(days=1)),
        lambda: get_store().renew(lease_of(key), timedelta(minutes=5)),
        lambda: get_store().release(lease_of(key)),
    ):
        with pytest.raises(LeaseLost), transaction.atomic():
            late()


def test_of_several_keys_those_that_changed_are_left_alone(
    operator: Client, make_key: MakeKey
) -> None:
    first, second, third = make_key(key="a"), make_key(key="b"), make_key(key="c")
    get_store().complete(lease_of(second), CREATED, timedelta(days=1))
    answer = submit(operator, first, second, third, **FREE)
    assert answer["Location"] == LIST
    assert "Force-failed 2 keys." in said(answer)
    assert "POST /v1/charges b changed since you looked" in said(answer)
    states = IdempotencyKey.objects.order_by("key").values_list("state", flat=True)
    assert list(states) == ["failed", "succeeded", "failed"]
    assert LogEntry.objects.count() == KeyEvent.objects.count() == 2


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "1",
        "x:y",
        "{pk}:x",
        "{pk}:x:processing:",
        "{pk}:{other}:processing:",
        "{pk}:{owner}:processing:prepared\0",
        "{pk}:{owner}:succeeded:",
        "{pk}:{owner}:nonsense:",
        "{pk}9:{owner}:processing:",
        "-{pk}:{owner}:processing:",
        "9" * 40 + ":{owner}:processing:",
    ],
)
def test_a_token_that_no_page_wrote_ends_nothing(
    operator: Client, make_key: MakeKey, forged: str
) -> None:
    key = make_key()
    written = forged.format(pk=key.pk, owner=key.owner, other=uuid.uuid4())
    assert operator.post(FORCE_FAIL, {"token": written, **FREE}).status_code == 302
    assert IdempotencyKey.objects.get().state == "processing"
    assert nothing_written()


def test_no_key_is_ended_without_its_line_in_the_admin_log(
    operator: Client, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OperationalError("the log is full")

    monkeypatch.setattr(IdempotencyKeyAdmin, "log_change", fail)
    key = make_key()
    answer = submit(operator, key, **FINAL)
    assert "The database did not answer in time" in said(answer)
    assert IdempotencyKey.objects.get().state == "processing"
    assert nothing_written()
    assert not StoredResponse.objects.exists()
