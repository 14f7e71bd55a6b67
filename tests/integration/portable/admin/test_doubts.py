"""The queue and the page that decides: who may do what, what is asked, and what is written."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from idempotency.admin import DoubtAdmin
from idempotency.core.states import State
from idempotency.models import EventKind, KeyEvent, MessageState, OutboxMessage, Proposal
from idempotency.operations import NotSent, Refused, Unknown
from idempotency.stores import clock
from tests.integration.portable.admin.rows import logged_in, new_staff, token
from tests.integration.portable.conformance.harness import NOW, Key, at, seconds
from tests.integration.portable.doubts.payouts import (
    NOTHING,
    PAID,
    REFUSED,
    Gift,
    Secretive,
    paid,
    says,
    stand,
    stays,
)
from tests.integration.portable.jobs.shipments import Shipment, named

pytestmark = pytest.mark.django_db

QUEUE = "/admin/idempotency/doubt/"
KEYS = "/admin/idempotency/idempotencykey/"
Staff = Callable[..., Client]
VIEW, ASK, SETTLE = "view_idempotencykey", "ask_idempotencykey", "settle_idempotencykey"


@pytest.fixture(autouse=True)
def silence() -> None:
    for memory in (Shipment.answers, Shipment.keys, Shipment.found, Shipment.asked):
        memory.clear()


@pytest.fixture
def settler(staff: Staff) -> Client:
    return staff(VIEW, ASK, SETTLE, "view_keyevent", name="maria")


def page_of(key: Key) -> str:
    return f"{QUEUE}{key.row.pk}/change/"


def text_of(client: Client, path: str) -> str:
    """A page as a person reads it."""
    answer = client.get(path)
    assert answer.status_code == 200
    main = answer.content.decode().split("<main")[1].split("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def take(client: Client, key: Key, step: str, **fields: Any) -> Any:
    data = {"token": token(key.row), "step": step, **fields}
    return client.post(page_of(key), data)


def settle(client: Client, key: Key, choice: str = "succeeded", **fields: Any) -> Any:
    return take(client, key, "settle", **{"choice": choice, "reason": "they told me", **fields})


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def kinds(key: Key) -> list[str]:
    return [event.kind for event in key.events()]


# Who may what


@pytest.mark.parametrize(
    ("permissions", "step", "status"),
    [
        ([], "ask", 403),
        ([ASK], "ask", 403),
        ([VIEW, SETTLE], "ask", 403),
        ([VIEW, ASK], "ask", 302),
        ([VIEW, SETTLE], "ask_again", 403),
        ([VIEW, ASK], "ask_again", 302),
        ([SETTLE], "settle", 403),
        ([VIEW, ASK], "settle", 403),
        ([VIEW, "force_fail_idempotencykey", "change_idempotencykey"], "settle", 403),
        ([VIEW, SETTLE], "settle", 302),
        ([VIEW, ASK, SETTLE], "delete", 403),
    ],
)
def test_each_step_takes_its_own_permission_and_the_one_to_see_keys(
    staff: Staff, permissions: list[str], step: str, status: int
) -> None:
    client, key = staff(*permissions), stand()
    before = key.row
    says(PAID)
    form = {"choice": "succeeded", "reason": "r", "again-reason": "r"}
    assert take(client, key, step, **form).status_code == status
    if status == 403:
        assert stays(key, before)
        assert Shipment.asked == []
        assert not LogEntry.objects.exists()


def test_without_permission_there_is_no_form(staff: Staff) -> None:
    viewer, key = staff(VIEW, name="viewer"), stand()
    page = text_of(viewer, page_of(key))
    assert "Your account may not ask" in page
    assert "Your account may not settle" in page
    assert "Force-fail" not in page
    assert b"<button" not in viewer.get(page_of(key)).content.split(b"<main")[1]
    assert Client().get(QUEUE).status_code == 302
    assert staff("view_keyevent", name="other").get(QUEUE).status_code == 403


def test_a_form_of_another_site_is_refused(settler: Client) -> None:
    key, strict = stand(), Client(enforce_csrf_checks=True)
    strict.cookies = settler.cookies
    assert settle(strict, key).status_code == 403


@pytest.mark.parametrize("forged", ["", "1", "{pk}:x:in_doubt:prepared", "9{pk}:{owner}:in_doubt:"])
def test_a_token_that_no_page_wrote_decides_nothing(settler: Client, forged: str) -> None:
    key = stand()
    before = key.row
    says(PAID)
    written = forged.format(pk=before.pk, owner=before.owner)
    answer = take(settler, key, "settle", token=written, choice="succeeded", reason="r")
    assert answer.status_code == 403
    assert stays(key, before)


# The queue


def test_the_queue_shows_what_waits_the_oldest_first(settler: Client) -> None:
    for name, minutes in (("young", 1), ("old", 90)):
        with at(NOW - timedelta(minutes=minutes)):
            stand(name, minor=4900)
    stand("running", doubt=False, lease=timedelta(minutes=5))
    page = text_of(settler, QUEUE)
    assert page.index("POST /things old") < page.index("POST /things young")
    assert "running" not in page
    assert "4900 EUR (minor units)" in page
    assert "tests.payout" in page
    assert "no answer" in page
    assert "open for 1 h" in page


def test_an_empty_queue_says_so(settler: Client) -> None:
    assert "Somebody has to decide Nothing." in text_of(settler, QUEUE)


def test_pages_go_on_where_the_last_one_ended(
    settler: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotency.admin.doubts.PER_PAGE", 2)
    for number in range(5):
        with at(NOW - timedelta(minutes=60 - number)):
            stand(f"key{number}")
    seen, path = [], QUEUE
    while path:
        page = settler.get(path).content.decode()
        seen += re.findall(r"POST /things (key\d)</a>", page)
        found = re.search(r'href="(\?after=[^"]+)"', page)
        path = found and QUEUE + unescape(found[1])
    assert seen == [f"key{number}" for number in range(5)]


@pytest.mark.parametrize("after", ["x", "2026-01-01,1", "2026-01-01T00:00:00+00:00,x", ",", "\0"])
def test_a_place_that_cannot_be_read_is_the_beginning(settler: Client, after: str) -> None:
    stand()
    assert "POST /things k" in text_of(settler, f"{QUEUE}?after={after}")


def test_the_queue_counts_nothing_and_reads_a_page(settler: Client) -> None:
    for number in range(4):
        stand(f"k{number}")
    with CaptureQueriesContext(connection) as queries:
        settler.get(QUEUE)
    ours = [query["sql"] for query in queries if "idempotency_" in query["sql"]]
    keys = [sql for sql in ours if 'FROM "idempotency_idempotencykey"' in sql]
    assert len(keys) == 1
    assert "LIMIT 26" in keys[0]
    assert not [sql for sql in ours if "COUNT(" in sql and "LIMIT" not in sql]


def test_dead_messages_are_counted_up_to_a_bound_and_linked(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = staff(VIEW, "view_outboxmessage")
    assert "No dead message in the outbox" in text_of(client, QUEUE)
    for _ in range(3):
        OutboxMessage.objects.create(
            message_id=uuid.uuid4(),
            channel="c",
            payload={},
            state=MessageState.DEAD,
            due_at=clock.now(),
            created_at=clock.now(),
            queued_at=clock.now(),
            settled_at=clock.now(),
        )
    assert "3 dead messages in the outbox: show them" in text_of(client, QUEUE)
    monkeypatch.setattr("idempotency.admin.doubts.MOST_DEAD", 2)
    assert "More than 2 dead messages" in text_of(client, QUEUE)


def test_the_queue_is_in_the_index_for_whoever_may_see_keys(staff: Staff) -> None:
    assert QUEUE in staff(VIEW).get("/admin/").content.decode()
    assert QUEUE not in staff("view_keyevent", name="b").get("/admin/").content.decode()


# Asking


def test_what_the_other_side_says_is_fetched_when_somebody_asks(settler: Client) -> None:
    key = stand()
    says(PAID)
    page = text_of(settler, page_of(key))
    assert "Nobody has asked since the last attempt." in page
    assert Shipment.asked == []

    answer = take(settler, key, "ask")

    assert "It has done it, and calls it “b1”." in said(answer)
    assert key.row.state == State.IN_DOUBT
    page = text_of(settler, answer["Location"])
    assert "It has done it, and calls it “b1”. maria asked" in page
    assert LogEntry.objects.get().change_message == "Asked the other side"


def test_an_answer_about_an_earlier_attempt_is_not_shown(settler: Client) -> None:
    key = stand(doubt=False, lease=timedelta(0))
    says(PAID)
    take(settler, key, "ask")
    assert key.store.take_over(key.row.pk, timedelta(0)) is not None
    assert "Nobody has asked since the last attempt." in text_of(settler, page_of(key))


@pytest.mark.parametrize(
    ("kind", "answer", "text", "state"),
    [
        ("payout", PAID, "Settled as succeeded.", "succeeded"),
        ("payout", REFUSED, "Settled as refused.", "succeeded"),
        ("payout", NOTHING, "Nothing follows from that yet", "in_doubt"),
        ("payout", Unknown("away"), "It does not say: away Nothing follows", "in_doubt"),
        ("gift", NOTHING, "Left to the job, which makes the call again.", "processing"),
    ],
)
def test_asking_again_settles_as_it_answers(
    settler: Client, kind: str, answer: Any, text: str, state: str
) -> None:
    key = stand(kind=Gift) if kind == "gift" else stand()
    says(answer)
    response = take(settler, key, "ask_again", **{"again-reason": "it is back"})
    assert text in said(response)
    assert key.row.state == state
    assert key.events()[-1].actor == "maria"
    assert LogEntry.objects.get().change_message == (
        "Asked again, to be settled as answered: it is back"
    )


def test_asking_again_takes_a_reason(settler: Client) -> None:
    key = stand()
    says(PAID)
    answer = take(settler, key, "ask_again", **{"again-reason": "  "})
    assert answer.status_code == 200
    assert "This field is required." in answer.content.decode()
    assert Shipment.asked == []


# Settling


@pytest.mark.parametrize(
    ("choice", "record", "answer", "state", "status"),
    [
        ("succeeded", "", PAID, "succeeded", 201),
        ("succeeded", "b7", Unknown("away"), "succeeded", 201),
        ("refused", "closed", Unknown("away"), "succeeded", 402),
    ],
)
def test_it_is_settled_with_reason_and_record(
    settler: Client, choice: str, record: str, answer: Any, state: str, status: int
) -> None:
    key = stand()
    pk = key.row.pk
    says(answer)
    response = settle(settler, key, choice, record=record)
    assert response["Location"] == f"{KEYS}{pk}/change/"
    assert said(response) == "Settled."
    assert key.row.state == state
    assert key.responses()[0].status == status
    assert paid() == ["k"]
    event = KeyEvent.objects.get(kind=EventKind.RESOLVED)
    assert (event.actor, event.reason) == ("maria", "they told me")
    shown = f", record {record}" if record else ""
    entry = LogEntry.objects.get()
    assert entry.change_message == f"Settled ({choice}{shown}): they told me"
    assert entry.object_id == str(pk)
    story = text_of(settler, response["Location"])
    assert "The doubt was settled: they told me" in story


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": ""},
        {"reason": " "},
        {"reason": "x" * 501},
        {"choice": ""},
        {"choice": "free"},
        {"choice": "both"},
        {"record": "x" * 256},
    ],
)
def test_a_choice_and_a_typed_reason_are_demanded(settler: Client, fields: dict[str, str]) -> None:
    key = stand()
    before = key.row
    says(PAID)
    answer = settle(settler, key, **{"choice": "succeeded", **fields})
    assert answer.status_code == 200
    assert "errornote" in answer.content.decode()
    assert stays(key, before)
    assert Shipment.asked == []


def test_nothing_is_chosen_and_nothing_is_ticked_beforehand(settler: Client) -> None:
    page = settler.get(page_of(stand())).content.decode()
    assert page.count('type="radio"') == 3
    assert " checked" not in page
    assert "I know, and settle it so" not in page


def test_the_page_says_what_will_be_written(settler: Client) -> None:
    page = text_of(settler, page_of(stand()))
    assert "as if its call had answered so, with the record below" in page
    assert "every retry gets that refusal" in page
    assert "If the first call arrives after all, there are two." in page


def test_what_the_other_side_contradicts_takes_one_more_word(settler: Client) -> None:
    key = stand()
    says(REFUSED)
    answer = settle(settler, key, record="b1")
    page = answer.content.decode()
    assert "the other side says otherwise. It has refused it: “closed”." in unescape(page)
    assert "I know, and settle it so" in page
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])
    (box,) = re.findall(r'<input type="checkbox" name="against" value="([^"]*)">', page)
    assert box == "refused:closed"
    assert said(settle(settler, key, record="b1", against=box)) == "Settled."
    assert key.row.state == State.SUCCEEDED


@pytest.mark.parametrize("code", [" closed ", "c" * 255], ids=["blanks", "long"])
def test_the_box_holds_the_answer_as_it_is(settler: Client, code: str) -> None:
    key = stand()
    says(Refused({"code": code}))
    page = settle(settler, key, record="b1").content.decode()
    (box,) = re.findall(r'<input type="checkbox" name="against" value="([^"]*)">', page)
    assert box == f"refused:{code}"
    assert said(settle(settler, key, record="b1", against=box)) == "Settled."


def test_that_it_never_happened_takes_one_more_word_while_a_call_may_arrive(
    settler: Client,
) -> None:
    key = stand()
    says(NotSent("unheard of"))
    page = settle(settler, key, "never_happened").content.decode()
    assert "a call may still be on its way" in page
    assert key.row.state == State.IN_DOUBT
    with at(NOW + seconds(7200)):
        assert said(settle(settler, key, "never_happened")) == "Settled."
    assert key.row.state == State.FAILED


def test_a_record_is_asked_for_where_the_other_side_gives_none(settler: Client) -> None:
    key = stand()
    says(Unknown("away"))
    page = settle(settler, key).content.decode()
    assert "Say what the other side calls it. It does not say: away" in page
    assert key.row.state == State.IN_DOUBT
    closed = stand("s", kind=Secretive)
    says(Unknown("away"), "s")
    page = settle(settler, closed, record="b1").content.decode()
    assert "Only the other side" in page
    assert closed.row.state == State.IN_DOUBT


@pytest.mark.parametrize("step", ["ask", "ask_again", "settle"])
def test_a_key_that_changed_while_the_operator_typed_is_left_alone(
    settler: Client, step: str
) -> None:
    key = stand(doubt=False, lease=timedelta(0))
    says(PAID)
    shown = token(key.row)
    assert key.store.take_over(key.row.pk, seconds(30)) is not None
    form = {"choice": "succeeded", "reason": "r", "again-reason": "r"}
    answer = take(settler, key, step, token=shown, **form)
    assert "changed since you looked, or somebody is at it. It is now processing, attempt 2" in (
        said(answer)
    )
    assert paid() == []
    assert not LogEntry.objects.exists()


def test_a_settled_key_leads_to_its_own_page(settler: Client) -> None:
    key = named()
    key.completed()
    assert settler.get(page_of(key))["Location"] == f"{KEYS}{key.row.pk}/change/"
    atomic = named("atomic")
    atomic.won()
    assert settler.get(page_of(atomic)).status_code == 302
    assert settler.get(f"{QUEUE}x/change/").status_code == 302


def test_an_operation_that_this_process_does_not_know_is_said_to_be(settler: Client) -> None:
    key = stand()
    row = key.row
    row.context["operation"] = "of.another.release"
    row.save()
    assert settler.get(page_of(key)).status_code == 200
    assert text_of(settler, QUEUE)
    assert "This process does not know the operation" in said(take(settler, key, "ask"))
    assert "This process does not know the operation" in said(settle(settler, key))


def test_what_cannot_be_finished_is_said_and_logged(
    settler: Client, caplog: pytest.LogCaptureFixture
) -> None:
    from django.contrib.auth.models import Group

    key = stand()
    Group.objects.create(name="k")  # it was finalized before, behind our back
    says(PAID)
    answer = settle(settler, key)
    assert "It could not be finished: ValueError." in said(answer)
    assert key.row.state == State.IN_DOUBT
    assert "could not settle the operation of key" in caplog.text
    assert not LogEntry.objects.exists()


def test_nothing_is_settled_without_its_line_in_the_admin_log(
    settler: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OperationalError("the log is full")

    monkeypatch.setattr(DoubtAdmin, "log_change", fail)
    key = stand()
    says(PAID)
    assert "The database did not answer in time" in said(settle(settler, key))
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])
    assert EventKind.RESOLVED not in kinds(key)


def test_the_downstream_key_and_the_context_are_for_those_who_may(staff: Staff) -> None:
    from idempotency.kept import Kept

    key = stand()
    row = key.row
    downstream = Kept.read(row.context).key
    for permission, sees_key, sees_context in (
        ("view_keyevent", False, False),
        (ASK, True, False),
        (SETTLE, True, False),
        ("view_response_body", True, True),
    ):
        client = logged_in(new_staff(VIEW, permission, name=permission))
        for path in (page_of(key), f"{KEYS}{row.pk}/change/"):
            page = client.get(path).content.decode()
            assert (downstream in page) is sees_key
            assert ("&quot;minor&quot;" in page) is sees_context


# Two people


@pytest.fixture
def limit(configure: Callable[..., None]) -> None:
    configure(FOUR_EYES_ABOVE={"*": 1000})


def test_above_the_limit_it_is_proposed(settler: Client, limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    page = text_of(settler, page_of(key))
    assert "you propose, and another person has to approve" in page
    answer = settle(settler, key)
    assert "Nothing is settled until another person approves." in said(answer)
    assert key.row.state == State.IN_DOUBT
    assert Proposal.objects.get().proposed_by == "maria"
    assert LogEntry.objects.get().change_message == "Proposed to settle (succeeded): they told me"
    assert "maria proposed “succeeded”." in text_of(settler, page_of(key))
    assert "maria proposed “succeeded”." in text_of(settler, QUEUE)
    again = settle(settler, key).content.decode()
    assert "There is a proposal already" in again


def test_a_force_fail_above_the_limit_is_proposed_too(staff: Staff, limit: None) -> None:
    client, key = staff(VIEW, "force_fail_idempotencykey"), stand(minor=5000)
    before = key.row
    page = client.get(f"{KEYS}force-fail/?key={before.pk}").content.decode()
    assert "another person has to approve" in page
    form = {"token": token(before), "outcome": "final", "reason": "lost"}
    answer = client.post(f"{KEYS}force-fail/", form)
    assert "Proposed for 1 key: another person has to approve." in said(answer)
    assert stays(key, before)
    assert Proposal.objects.get().choice == "final"
    answer = client.post(f"{KEYS}force-fail/", form)
    assert "there is a proposal for" in said(answer)
