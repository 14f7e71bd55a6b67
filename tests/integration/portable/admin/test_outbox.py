"""The outbox in the admin: who may see and do what, and what the pages say."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from idempotency.admin.outbox_decisions import token
from idempotency.models import DeliveryEvent, OutboxMessage

LIST = "/admin/idempotency/outboxmessage/"
VIEW, RESEND, DISCARD = (f"{verb}_outboxmessage" for verb in ("view", "resend", "discard"))

Staff = Callable[..., Client]


@pytest.fixture
def make(now: Any) -> Callable[..., OutboxMessage]:
    import uuid

    def write(state: str = "pending", **fields: Any) -> OutboxMessage:
        unsent = state in ("pending", "sending")
        values = {
            "message_id": uuid.uuid4(),
            "channel": "mail",
            "destination": "we_1",
            "payload": {"note": "of the merchant", "secret": "whsec_1"},
            "state": state,
            "owner": uuid.uuid4() if state == "sending" else None,
            "due_at": now,
            "created_at": now,
            "queued_at": now,
            "settled_at": None if unsent else now,
        } | fields
        return OutboxMessage.objects.create(**values)

    return write


def page_of(client: Client, message: OutboxMessage) -> str:
    return client.get(f"{LIST}{message.pk}/change/").content.decode()


def decide(client: Client, name: str, *shown: OutboxMessage, reason: str = "because") -> Any:
    data = {"token": [token(message) for message in shown], "reason": reason}
    return client.post(f"{LIST}{name}/", data, follow=True)


def state_of(message: OutboxMessage) -> str:
    return OutboxMessage.objects.get(pk=message.pk).state


@pytest.mark.parametrize(
    ("permissions", "may"),
    [
        ((VIEW,), {"resend": 403, "discard": 403}),
        ((VIEW, RESEND), {"resend": 200, "discard": 403}),
        ((VIEW, DISCARD), {"resend": 403, "discard": 200}),
        ((RESEND, DISCARD), {"resend": 403, "discard": 403}),
    ],
)
def test_each_decision_needs_a_permission_of_its_own_and_that_of_seeing(
    staff: Staff, make: Any, permissions: tuple[str, ...], may: dict[str, int]
) -> None:
    client, message = staff(*permissions), make("dead")
    for name, status in may.items():
        assert client.get(f"{LIST}{name}/", {"message": message.pk}).status_code == status
        answer = client.post(f"{LIST}{name}/", {"token": token(message), "reason": ""})
        assert answer.status_code == status
        if VIEW in permissions:
            assert (f"{name}/?message=" in page_of(client, message)) is (status == 200)
            assert (f"{name}_selected".encode() in client.get(LIST).content) is (status == 200)
    assert state_of(message) == "dead"


def test_a_re_send_is_logged_with_who_and_why(staff: Staff, make: Any) -> None:
    client, message = staff(VIEW, RESEND), make("dead", attempt=25)
    answer = decide(client, "resend", message, reason="the merchant is back")
    assert "Re-send: 1 message." in answer.content.decode()
    assert state_of(message) == "pending"
    event = DeliveryEvent.objects.get()
    assert (event.kind, event.actor, event.detail) == (
        "resent",
        "operator",
        "the merchant is back",
    )
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (
        str(message.pk),
        "Re-sent: the merchant is back",
    )
    assert "by operator" in page_of(client, message)


def test_a_message_that_changed_since_it_was_shown_is_left_alone(staff: Staff, make: Any) -> None:
    client, message, other = staff(VIEW, DISCARD), make("dead"), make("dead")
    shown = [message, other]
    OutboxMessage.objects.filter(pk=message.pk).update(attempt=1)
    text = decide(client, "discard", *shown).content.decode()
    assert "changed since you looked: it is now dead, attempt 1" in text
    assert "Discard: 1 message." in text
    assert (state_of(message), state_of(other)) == ("dead", "discarded")
    assert LogEntry.objects.count() == 1


def test_a_reason_is_demanded(staff: Staff, make: Any) -> None:
    client, message = staff(VIEW, DISCARD), make("dead")
    text = decide(client, "discard", message, reason=" ").content.decode()
    assert "This field is required" in text
    assert token(message) in text
    assert state_of(message) == "dead"


def test_what_cannot_be_decided_is_named_and_left_out(staff: Staff, make: Any) -> None:
    client = staff(VIEW, DISCARD)
    dead, done = make("dead"), make("delivered")
    ids = {"message": [dead.pk, done.pk]}
    text = client.get(f"{LIST}discard/", ids).content.decode()
    assert "Not possible for these as they stand" in text
    assert token(dead) in text
    assert token(done) not in text
    nothing = client.get(f"{LIST}discard/", {"message": done.pk}).content.decode()
    assert "There is nothing to decide" in nothing


@pytest.mark.parametrize(
    "forged", ["", "1", "1:dead:x:y", "1:nowhere:0:2026-01-01", "x:dead:0:2026"]
)
def test_a_forged_token_decides_nothing(staff: Staff, make: Any, forged: str) -> None:
    client, message = staff(VIEW, DISCARD), make("dead")
    answer = client.post(f"{LIST}discard/", {"token": forged, "reason": "x"}, follow=True)
    assert answer.status_code == 200
    assert state_of(message) == "dead"


def test_the_action_of_the_list_asks_about_the_ticked_ones(staff: Staff, make: Any) -> None:
    client, message = staff(VIEW, RESEND), make("dead")
    data = {"action": "resend_selected", "_selected_action": [message.pk], "index": "0"}
    answer = client.post(f"{LIST}?state__exact=dead", data)
    assert answer["Location"] == (
        f"{LIST}resend/?message={message.pk}&_changelist_filters=state__exact%3Ddead"
    )


def test_payloads_are_hidden_from_whoever_lacks_the_permission(staff: Staff, make: Any) -> None:
    message = make()
    assert "of the merchant" not in page_of(staff(VIEW), message)
    page = page_of(staff(VIEW, "view_outbox_payload", name="other"), message)
    assert "of the merchant" in page
    assert "whsec_1" not in page, "a secret is masked for everybody"


def test_the_page_says_what_a_message_waits_for(staff: Staff, make: Any) -> None:
    client = staff(VIEW)
    dead, behind = make("dead", aggregate="ch_1"), make(aggregate="ch_1")
    text = page_of(client, behind)
    assert "It waits for the one before it:" in text
    assert f"{LIST}{dead.pk}/change/" in text
    assert "It waits for" not in page_of(client, make(aggregate="ch_2"))


def test_the_page_shows_the_history_oldest_first(staff: Staff, make: Any, now: Any) -> None:
    message = make("delivered", attempt=2)
    for attempt, kind in ((1, "failed"), (2, "delivered")):
        DeliveryEvent.objects.create(
            message=message, kind=kind, attempt=attempt, at=now, seconds=0.25, detail="<b>"
        )
    text = page_of(staff(VIEW), message)
    assert text.index("Attempt 1: failed") < text.index("Attempt 2: delivered")
    assert "&lt;b&gt;" in text
    assert "0.250 s" in text


def test_a_sender_whose_lease_is_over_is_marked(staff: Staff, make: Any, now: Any) -> None:
    client = staff(VIEW)
    assert "lease over" in page_of(client, make("sending", due_at=now - timedelta(seconds=1)))


@pytest.mark.parametrize("by", ["message_id", "destination", "aggregate"])
def test_a_message_is_found_by_what_an_operator_has(staff: Staff, make: Any, by: str) -> None:
    wanted = make(destination="we_wanted", aggregate="ch_wanted")
    other = make()
    text = staff(VIEW).get(LIST, {"q": str(getattr(wanted, by))}).content.decode()
    assert str(wanted.message_id) in text
    assert str(other.message_id) not in text


def test_the_list_counts_nothing_and_reads_no_more_than_a_page(staff: Staff, make: Any) -> None:
    client = staff(VIEW)
    for _ in range(3):
        make()
    with CaptureQueriesContext(connection) as queries:
        assert client.get(LIST, {"channel": "mail", "state__exact": "pending"}).status_code == 200
    assert not [query["sql"] for query in queries if "COUNT(" in query["sql"].upper()]


def test_nobody_changes_a_message_by_hand(root: Client, make: Any) -> None:
    message = make()
    assert root.post(f"{LIST}{message.pk}/change/", {"state": "delivered"}).status_code == 403
    assert root.post(f"{LIST}{message.pk}/delete/", {"post": "yes"}).status_code == 403
    assert root.get(f"{LIST}add/").status_code == 403
