"""Messages of one aggregate are sent in the order of their commits, one at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import Dead, Retry
from idempotency.testing import FrozenClock
from tests.integration.portable.outbox.mail import (
    BACKOFF,
    Mail,
    dispatch,
    states,
    write,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_claim")]


def test_each_waits_for_the_one_before_it(clock: FrozenClock) -> None:
    write("a", "b", "c", about="x")
    write("other", about="y")
    write("free")
    Mail.answers["b"] = [Retry("not now")]

    dispatch()
    assert Mail.names() == ["a", "b", "other", "free"]
    assert states()["c"] == "pending"
    clock.advance(timedelta(seconds=BACKOFF))
    dispatch()
    assert Mail.names()[-2:] == ["b", "c"]


def test_order_is_one_receivers_and_another_destination_does_not_wait(clock: FrozenClock) -> None:
    write("a1", "a2", to="a", about="x")
    write("b1", "b2", to="b", about="x")
    Mail.answers["a1"] = [Retry("down")]
    dispatch()
    assert Mail.names() == ["a1", "b1", "b2"]


def test_a_dead_message_holds_those_behind_it(clock: FrozenClock) -> None:
    write("a", "b", about="x")
    Mail.answers["a"] = [Dead("refused")]
    dispatch()
    clock.advance(timedelta(days=1))
    dispatch()
    assert states() == {"a": "dead", "b": "pending"}


def test_nothing_is_sent_ahead_of_a_message_whose_sender_died(clock: FrozenClock) -> None:
    write("a", "b", about="x")
    OutboxMessage.objects.filter(payload__name="a").update(
        state="sending", owner="00000000-0000-0000-0000-000000000000", due_at=clock.now
    )
    clock.advance(timedelta(seconds=-1))  # its lease has a second left
    dispatch()
    assert Mail.names() == []
    clock.advance(timedelta(seconds=1))
    dispatch()
    assert Mail.names() == ["a", "b"]


def test_what_rolled_back_holds_nobody(clock: FrozenClock) -> None:
    def fail() -> Any:
        with transaction.atomic():
            outbox.send("mail", {"name": "never"}, aggregate="x")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    write("a", about="x")
    dispatch()
    assert Mail.names() == ["a"]
