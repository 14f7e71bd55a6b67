"""A person's decision: what it takes, what is written, and who it never overrules."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from idempotency import signals
from idempotency.core.decisions import Replay, Won
from idempotency.core.errors import LeaseLost
from idempotency.core.states import State
from idempotency.doubts import Ending
from idempotency.enquiry import CannotSettle, Contradicted, TooEarly, shown
from idempotency.models import Choice, EventKind, KeyEvent
from idempotency.operations import Done, Outcome, Unknown
from idempotency.operators import Seen
from tests.integration.portable.api import listening
from tests.integration.portable.conformance.harness import NOW, at, elsewhere, seconds
from tests.integration.portable.doubts.payouts import (
    NOTHING,
    PAID,
    REFUSED,
    Gift,
    Secretive,
    decide,
    paid,
    says,
    stand,
    stays,
)
from tests.integration.portable.jobs.shipments import Shipment

pytestmark = pytest.mark.django_db

SILENT = Unknown("away")
SETTLING = [Choice.SUCCEEDED, Choice.REFUSED, Choice.NEVER_HAPPENED]


# What follows


@pytest.mark.parametrize("answer", [PAID, SILENT])
def test_succeeded_is_finished_as_if_the_other_side_had_answered_so(answer: Outcome) -> None:
    key = stand()
    says(answer)

    assert decide(key, record="" if answer is PAID else "b1") is Ending.DONE

    answered = key.claim()
    assert isinstance(answered, Replay)
    assert answered.response is not None
    assert (answered.response.status, answered.response.body) == (201, b'{"id":"b1"}')
    assert paid() == ["k"]


def test_refused_is_answered_as_a_refusal() -> None:
    key = stand()
    says(SILENT)
    assert decide(key, Choice.REFUSED, record="closed") is Ending.DONE
    assert (key.responses()[0].status, key.responses()[0].body) == (402, b'{"code":"closed"}')


def test_what_never_happened_is_withdrawn_and_the_key_is_free() -> None:
    with at(NOW):
        key = stand()
        says(NOTHING)
    with at(NOW + seconds(3600)):
        assert decide(key, Choice.NEVER_HAPPENED) is Ending.DONE
        assert (key.row.state, key.row.failure) == (State.FAILED, "the bank's support said so")
        assert paid() == ["no k"]
        again = key.claim()
    assert isinstance(again, Won)
    assert again.lease.recovery_point == ""


@pytest.mark.parametrize(
    ("choice", "state"), [(Choice.FREE, "processing"), (Choice.FINAL, "succeeded")]
)
def test_it_may_end_without_knowing(choice: Choice, state: str) -> None:
    key = stand()
    assert decide(key, choice) is Ending.DONE
    assert key.row.state == state
    assert Shipment.asked == []
    assert [event.kind for event in key.events()] == [EventKind.IN_DOUBT, EventKind.FORCE_FAILED]
    assert paid() == []


def test_the_story_says_who_settled_it_on_what_grounds() -> None:
    key = stand()
    owner = str(key.row.owner)
    says(SILENT)
    decide(key, record="b7")
    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.RESOLVED, "maria")
    assert event.reason == "the bank's support said so"
    assert event.data == {
        "from": owner,
        "was": "in_doubt",
        "outcome": "done",
        "record": "b7",
        "answered": "unknown",
        "by_hand": True,
    }


# What the other side says


@pytest.mark.parametrize(
    ("choice", "record", "answer"),
    [
        (Choice.SUCCEEDED, "b1", REFUSED),
        (Choice.SUCCEEDED, "b1", NOTHING),
        (Choice.SUCCEEDED, "", NOTHING),
        (Choice.SUCCEEDED, "b2", PAID),
        (Choice.REFUSED, "closed", PAID),
        (Choice.REFUSED, "lost", REFUSED),
        (Choice.NEVER_HAPPENED, "", PAID),
        (Choice.NEVER_HAPPENED, "", REFUSED),
    ],
)
def test_nothing_is_written_against_what_the_other_side_says(
    choice: Choice, record: str, answer: Outcome
) -> None:
    key = stand()
    before = key.row
    says(answer)

    with pytest.raises(Contradicted) as caught:
        decide(key, choice, record=record)

    assert caught.value.answer == answer
    assert stays(key, before)
    assert paid() == []


def test_but_by_somebody_who_knows_and_says_so() -> None:
    key = stand()
    says(NOTHING)
    assert decide(key, record="b1", against=shown(NOTHING)) is Ending.DONE
    assert key.row.state == State.SUCCEEDED
    assert key.events()[-1].data["answered"] == "not_sent"


@pytest.mark.parametrize("then", [PAID, REFUSED, SILENT])
def test_whoever_knows_one_answer_does_not_know_the_next(then: Outcome) -> None:
    """Told that a call may still be on its way, a person takes it on himself; and the call
    arrives. What he would free is charged again under another key."""
    with at(NOW):
        key = stand()
        says(NOTHING)
        with pytest.raises(TooEarly) as caught:
            decide(key, Choice.NEVER_HAPPENED)
        before, knows = key.row, shown(caught.value.answer)
        says(then)
        with pytest.raises((Contradicted, TooEarly)):
            decide(key, Choice.NEVER_HAPPENED, against=knows)
        assert stays(key, before)


@pytest.mark.parametrize("choice", [Choice.SUCCEEDED, Choice.REFUSED])
@pytest.mark.parametrize("against", ["", "unknown:"])
def test_a_record_is_demanded_where_the_other_side_gives_none(choice: Choice, against: str) -> None:
    key = stand()
    says(SILENT)
    with pytest.raises(CannotSettle) as caught:
        decide(key, choice, against=against)
    assert (caught.value.answer, caught.value.by_hand) == (SILENT, True)
    assert key.row.state == State.IN_DOUBT


def test_an_operation_may_take_nothing_but_the_other_sides_own_answer() -> None:
    key = stand(kind=Secretive)
    says(SILENT)
    with pytest.raises(CannotSettle) as caught:
        decide(key, record="b1")
    assert not caught.value.by_hand
    says(PAID)
    assert decide(key) is Ending.DONE


@pytest.mark.parametrize("answer", [NOTHING, SILENT])
def test_a_call_may_still_be_on_its_way(answer: Outcome) -> None:
    with at(NOW):
        key = stand()
        says(answer)
    with at(NOW + seconds(3599)):
        with pytest.raises(TooEarly) as caught:
            decide(key, Choice.NEVER_HAPPENED)
        assert caught.value.left == seconds(1)
        assert key.row.state == State.IN_DOUBT
        assert decide(key, Choice.NEVER_HAPPENED, against=shown(answer)) is Ending.DONE


@pytest.mark.parametrize("given_up", [False, True])
def test_where_the_call_is_always_repeated_it_counts_from_the_last_attempt(given_up: bool) -> None:
    with at(NOW):
        key = stand(kind=Gift, doubt=False, lease=timedelta(0))
        says(NOTHING)
    with at(NOW + seconds(7200)):
        attempt = key.store.take_over(key.row.pk, seconds(30))
        assert attempt is not None
        (key.store.doubt if given_up else key.store.suspend)(attempt, "timeout")
    with at(NOW + seconds(7201)):
        with pytest.raises(TooEarly) as caught:
            decide(key, Choice.NEVER_HAPPENED)
        assert caught.value.left == seconds(3599)
    with at(NOW + seconds(10800)):
        assert decide(key, Choice.NEVER_HAPPENED) is Ending.DONE


def test_a_doubt_that_is_older_than_its_story_is_old_enough() -> None:
    with at(NOW):
        key = stand(kind=Gift)
        says(NOTHING)
        KeyEvent.objects.all().delete()
        assert decide(key, Choice.NEVER_HAPPENED) is Ending.DONE


# Who was faster


@pytest.mark.parametrize("choice", Choice)
def test_nothing_is_decided_about_a_key_that_changed(choice: Choice) -> None:
    key = stand()
    before, was = key.row, Seen.of(key.row)
    says(PAID)
    for other in (
        Seen(uuid.uuid4(), was.state, was.recovery_point),
        Seen(was.owner, State.PROCESSING, was.recovery_point),
        Seen(was.owner, was.state, "elsewhere"),
    ):
        assert decide(key, choice, seen=other, against=shown(NOTHING)) is Ending.CHANGED
    assert stays(key, before)
    assert [event.kind for event in key.events()] == [EventKind.IN_DOUBT]
    assert paid() == []


def test_nothing_is_decided_about_a_key_that_is_settled() -> None:
    key = stand()
    says(PAID)
    decide(key)
    for choice in Choice:
        assert decide(key, choice, against=shown(NOTHING)) is Ending.CHANGED
    assert paid() == ["k"]


@pytest.mark.parametrize("choice", SETTLING)
def test_only_a_call_that_was_made_can_be_settled(choice: Choice) -> None:
    from tests.integration.portable.jobs.shipments import named

    key = named()
    key.won()
    assert decide(key, choice, against=shown(NOTHING)) is Ending.CHANGED
    assert Shipment.asked == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("choice", SETTLING)
def test_whoever_takes_it_over_while_the_other_side_is_asked_is_not_overruled(
    choice: Choice,
) -> None:
    key = stand(doubt=False, lease=timedelta(0))

    def overtaken() -> Outcome:
        elsewhere(lambda: key.store.take_over(key.row.pk, seconds(30)))
        return SILENT

    Shipment.found["k"] = overtaken
    assert decide(key, choice, record="b1", against=shown(SILENT)) is Ending.CHANGED
    assert (key.row.attempt, paid()) == (2, [])
    assert EventKind.RESOLVED not in [event.kind for event in key.events()]


def test_a_live_worker_is_fenced_off_by_what_is_known() -> None:
    key = stand(kind=Gift, doubt=False, lease=seconds(30))
    row = key.row
    lease = key.store._lease(row)  # type: ignore[attr-defined]
    says(PAID)
    assert decide(key) is Ending.DONE
    with pytest.raises(LeaseLost):
        key.store.renew(lease, seconds(30))
    assert paid() == ["k"]


def test_nobody_says_it_never_happened_while_somebody_may_be_at_it() -> None:
    key = stand(doubt=False, lease=seconds(30))
    says(SILENT)
    assert decide(key, Choice.NEVER_HAPPENED, against=shown(SILENT)) is Ending.CHANGED
    assert paid() == []


# All or nothing


@pytest.mark.parametrize("choice", [*SETTLING, Choice.FREE, Choice.FINAL])
def test_nothing_is_decided_without_its_line_in_the_log(choice: Choice) -> None:
    key = stand()
    says(SILENT)

    def full() -> None:
        raise RuntimeError("the log is full")

    with pytest.raises(RuntimeError, match="the log is full"):
        decide(key, choice, record="b1", against=shown(SILENT), also=full)
    assert key.row.state == State.IN_DOUBT
    assert paid() == []
    assert {event.kind for event in key.events()} == {EventKind.IN_DOUBT}


def test_what_finalize_cannot_do_leaves_it_as_open_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = stand()
    says(Done({"id": object()}))  # not JSON, so the answer cannot be made
    with pytest.raises(TypeError):
        decide(key)
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])


def test_also_is_called_once_and_with_the_end(configure: Callable[..., None]) -> None:
    states: list[Any] = []
    key = stand()
    says(PAID)
    decide(key, also=lambda: states.append((key.row.state, paid())))
    assert states == [("succeeded", ["k"])]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("choice", [Choice.FREE, Choice.FINAL])
def test_a_forced_end_is_announced_when_it_stands_and_not_when_it_was_taken_back(
    choice: Choice,
) -> None:
    key, heard = stand(), list[dict[str, Any]]()

    def full() -> None:
        raise RuntimeError("the log is full")

    def listen(**told: Any) -> None:
        heard.append(told)

    with listening(signals.key_force_failed, listen):
        with pytest.raises(RuntimeError, match="the log is full"):
            decide(key, choice, also=full)
        assert heard == []
        assert decide(key, choice) is Ending.DONE
    assert [(told["was"], told["now"]) for told in heard] == [("in_doubt", key.row.state)]
