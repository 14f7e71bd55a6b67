"""Re-send and discard: what they write, and that they write it for what was seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from idempotency.models import OutboxMessage
from idempotency.outbox import Dead, Retry, operators
from idempotency.outbox.operators import Seen
from idempotency.testing import FrozenClock
from tests.integration.portable.outbox.mail import (
    ATTEMPTS,
    BACKOFF,
    Mail,
    dispatch,
    history,
    of,
    states,
    write,
)

pytestmark = pytest.mark.django_db


def resend(name: str, seen: Seen | None = None) -> bool:
    why = {"actor": "ops", "reason": "they are back"}
    return operators.resend(of(name).pk, seen=seen or Seen.of(of(name)), **why)


def discard(name: str, seen: Seen | None = None) -> bool:
    why = {"actor": "ops", "reason": "not needed"}
    return operators.discard(of(name).pk, seen=seen or Seen.of(of(name)), **why)


@pytest.fixture
def dead(clock: FrozenClock) -> None:
    """A dead message and one that waits behind it."""
    write("dead", "behind", about="x")
    Mail.answers["dead"] = [Retry("down")] * ATTEMPTS
    for _ in range(ATTEMPTS):
        dispatch()
        clock.advance(timedelta(seconds=BACKOFF))
    Mail.arrived.clear()
    assert states() == {"dead": "dead", "behind": "pending"}


def test_a_dead_message_is_sent_again_in_its_place_and_under_its_id(dead: None) -> None:
    before = of("dead")
    assert resend("dead")
    dispatch()
    first, second = Mail.arrived
    assert (first.id, first.attempt) == (before.message_id, 1)
    assert second.payload["name"] == "behind"
    assert history("dead")[-2:] == [
        ("resent", ATTEMPTS, "they are back"),
        ("delivered", 1, "250 ok"),
    ]
    assert of("dead").history.get(kind="resent").actor == "ops"


def test_a_message_that_is_sent_again_has_its_attempts_and_its_age_anew(
    dead: None, clock: FrozenClock
) -> None:
    clock.advance(timedelta(days=30))
    resend("dead")
    Mail.answers["dead"] = [Retry("still down")]
    dispatch()
    assert of("dead").state == "pending"


def test_a_discarded_message_lets_those_behind_it_go(dead: None) -> None:
    # As if a claim had put it off while its predecessor was dead.
    OutboxMessage.objects.filter(payload__name="behind").update(
        due_at=of("behind").due_at + timedelta(minutes=10)
    )
    assert discard("dead")
    dispatch()
    assert Mail.names() == ["behind"]
    assert states()["dead"] == "discarded"
    assert history("dead")[-1] == ("discarded", ATTEMPTS, "not needed")


def test_what_was_delivered_or_discarded_may_be_sent_again(clock: FrozenClock) -> None:
    write("done", "gone")
    assert discard("gone")
    dispatch()
    assert resend("done")
    assert resend("gone")
    dispatch()
    assert Mail.names() == ["done", "done", "gone"]


def test_what_is_under_way_is_its_senders(clock: FrozenClock) -> None:
    seen: list[Any] = []

    def look(message: Any) -> None:
        seen.append((resend("a"), discard("a")))

    Mail.meet = look
    write("a")
    dispatch()
    assert seen == [(False, False)]


def test_a_message_that_waits_for_its_turn_cannot_be_sent_again_but_discarded(
    clock: FrozenClock,
) -> None:
    write("a")
    assert not resend("a")
    assert discard("a")
    dispatch()
    assert Mail.names() == []


def test_a_decision_about_what_has_changed_since_is_none(dead: None, clock: FrozenClock) -> None:
    seen = Seen.of(of("dead"))
    assert resend("dead", seen)
    assert not resend("dead", seen)
    assert not discard("dead", seen)

    # Dead again after as many attempts: still not what was seen.
    clock.advance(timedelta(seconds=1))
    Mail.answers["dead"] = [Dead("down")]
    dispatch()
    OutboxMessage.objects.filter(payload__name="dead").update(attempt=ATTEMPTS)
    assert of("dead").state == "dead"
    assert not discard("dead", seen)
    assert [kind for kind, *_ in history("dead")].count("resent") == 1


def test_a_decision_that_rolls_back_leaves_no_trace(dead: None) -> None:
    with transaction.atomic():
        assert discard("dead")
        transaction.set_rollback(True)
    assert states()["dead"] == "dead"
    assert history("dead")[-1][0] == "dead"
