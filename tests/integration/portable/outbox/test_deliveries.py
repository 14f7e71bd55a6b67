"""What becomes of a message: delivered, tried again, given up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from idempotency.models import OutboxMessage
from idempotency.outbox import Dead, Delivered, Message, Retry, signals
from idempotency.outbox.channels import find
from idempotency.outbox.claims import claim
from idempotency.outbox.messages import Ending
from idempotency.testing import FrozenClock
from tests.integration.portable.api import listening
from tests.integration.portable.outbox.mail import (
    ATTEMPTS,
    BACKOFF,
    NOW,
    Mail,
    dispatch,
    history,
    of,
    states,
    write,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_claim")]


def test_a_message_is_delivered_once_under_its_id_and_its_history_is_kept(
    clock: FrozenClock,
) -> None:
    write("a", to="smtp", about="letter 1")

    assert dispatch().delivered == 1
    assert dispatch().delivered == 0
    (message,) = Mail.arrived
    row = of("a")
    assert message == Message(
        id=row.message_id,
        sequence=row.sequence,
        channel="mail",
        destination="smtp",
        aggregate="letter 1",
        payload={"name": "a"},
        attempt=1,
        created_at=NOW,
    )
    assert (row.state, row.owner, row.settled_at) == ("delivered", None, NOW)
    assert history("a") == [("delivered", 1, "250 ok")]


def test_a_failed_send_is_made_again_under_the_same_id_after_the_back_off(
    clock: FrozenClock,
) -> None:
    write("a")
    Mail.answers["a"] = [Retry("451 busy")]

    assert dispatch().retried == 1
    assert (of("a").state, of("a").last_error) == ("pending", "451 busy")
    clock.advance(timedelta(seconds=BACKOFF - 0.001))
    dispatch()
    assert len(Mail.arrived) == 1
    clock.advance(timedelta(seconds=0.001))
    dispatch()
    first, second = Mail.arrived
    assert (second.id, second.attempt) == (first.id, 2)
    assert history("a") == [("failed", 1, "451 busy"), ("delivered", 2, "250 ok")]
    assert of("a").last_error == ""


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [(5.0, 10.0, 10.0), (300.0, 300.0, 301.0), (float("inf"), 86_400.0, 86_401.0), (-5, 10, 10)],
)
def test_retry_after_is_a_minimum_and_a_day_at_most(
    clock: FrozenClock, asked: float, least: float, most: float
) -> None:
    write("a")
    Mail.answers["a"] = [Retry("429", retry_after=asked)]
    dispatch()
    assert least <= (of("a").due_at - NOW).total_seconds() <= most


def test_after_its_last_attempt_a_message_is_dead(clock: FrozenClock) -> None:
    write("a")
    Mail.answers["a"] = [Retry("no")] * ATTEMPTS
    for _ in range(ATTEMPTS + 1):
        dispatch()
        clock.advance(timedelta(seconds=BACKOFF))

    assert len(Mail.arrived) == ATTEMPTS
    assert (of("a").state, of("a").last_error) == ("dead", "given up after 3 attempts: no")
    assert history("a")[-1] == ("dead", 3, "given up after 3 attempts: no")


def test_a_message_that_is_too_old_is_dead_whatever_attempts_are_left(clock: FrozenClock) -> None:
    write("a")
    clock.advance(timedelta(hours=1))
    Mail.answers["a"] = [Retry("no")]
    assert dispatch().dead == 1
    assert of("a").last_error == "given up after 1:00:00: no"


def test_what_is_refused_for_good_is_dead_at_once(clock: FrozenClock) -> None:
    write("a")
    Mail.answers["a"] = [Dead("550 no such user")]
    assert dispatch().dead == 1
    assert (of("a").state, of("a").settled_at) == ("dead", NOW)
    assert history("a") == [("dead", 1, "550 no such user")]


def test_an_exception_is_a_failed_send(
    clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    write("a")
    Mail.answers["a"] = [OSError("no\0route")]
    dispatch()
    assert of("a").last_error == "OSError: no\ufffdroute"
    assert "mail failed" in caplog.text


def test_an_ending_that_is_none_is_a_failed_send(clock: FrozenClock) -> None:
    write("a")
    Mail.answers["a"] = [None]  # type: ignore[list-item]
    dispatch()
    assert of("a").last_error.startswith("the channel returned None")


@pytest.mark.parametrize(
    ("said", "state", "detail"),
    [
        (Delivered(204), "delivered", "204"),  # type: ignore[arg-type]
        (Delivered(None), "delivered", ""),  # type: ignore[arg-type]
        (Dead(410), "dead", "410"),  # type: ignore[arg-type]
        (Retry(None), "pending", ""),  # type: ignore[arg-type]
        (Retry("429", "soon"), "pending", "ValueError: could not"),  # type: ignore[arg-type]
        (Retry("429", float("nan")), "pending", "ValueError: retry_after is no number"),
    ],
)
def test_an_ending_with_a_field_of_another_type_ends_its_message_and_not_the_dispatcher(
    clock: FrozenClock, said: Ending, state: str, detail: str
) -> None:
    write("a", "b")
    Mail.answers["a"] = [said]
    dispatch()
    assert states() == {"a": state, "b": "delivered"}
    assert history("a")[0][2].startswith(detail)


def test_retry_after_may_be_a_timedelta(clock: FrozenClock) -> None:
    write("a")
    Mail.answers["a"] = [Retry("429", timedelta(minutes=5))]  # type: ignore[arg-type]
    dispatch()
    assert 300 <= (of("a").due_at - NOW).total_seconds() <= 301


def test_attempts_that_never_said_how_they_ended_count(clock: FrozenClock) -> None:
    write("a")
    for _ in range(ATTEMPTS):  # as if each dispatcher had been killed
        assert claim("default", [find("mail")], {}, 9).claimed
        clock.advance(timedelta(seconds=60))

    assert dispatch().dead == 1
    assert Mail.arrived == []
    assert of("a").last_error == "none of 3 attempts ever said how it ended"
    assert [kind for kind, *_ in history("a")] == ["lost", "dead"]


def test_signals_tell_of_each_step_in_its_order(clock: FrozenClock) -> None:
    steps: list[Any] = []

    def note(signal: Any, message: Message, **about: Any) -> None:
        steps.append((signal, message.payload["name"], of("a").state, about.get("ending")))

    write("a")
    signalled = [signals.message_claimed, signals.message_sent, signals.message_settled]
    with (
        listening(signalled[0], note),
        listening(signalled[1], note),
        listening(signalled[2], note),
    ):
        dispatch()
    ended = Delivered("250 ok")
    assert steps == [
        (signalled[0], "a", "sending", None),
        (signalled[1], "a", "sending", ended),
        (signalled[2], "a", "delivered", ended),
    ]


def test_messages_of_channels_that_this_process_does_not_know_are_left_alone(
    clock: FrozenClock,
) -> None:
    write("a")
    OutboxMessage.objects.update(channel="of a newer release")
    assert dispatch().delivered == 0
    assert states() == {"a": "pending"}
