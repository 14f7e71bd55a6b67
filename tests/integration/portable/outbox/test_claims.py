"""Who may send a message, and whose turn it is."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.db import transaction

from idempotency import outbox
from idempotency.outbox import claims, marks
from idempotency.outbox.claims import Claimed, Lane
from idempotency.outbox.marks import Finished
from idempotency.outbox.messages import Delivered, Retry
from idempotency.testing import FrozenClock
from tests.integration.portable.api import together
from tests.integration.portable.outbox.mail import (
    AT_ONCE,
    Mail,
    dispatch,
    history,
    names,
    of,
    states,
    take,
    take_all,
    write,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_claim")]


def delivered(claimed: Claimed) -> list[Finished]:
    return marks.mark("default", [Finished(claimed, Delivered(), 0.1)])


# Leases and fences


def test_a_claimed_message_is_nobody_elses_until_its_lease_is_over(clock: FrozenClock) -> None:
    write("a")
    (first,) = take()
    assert take() == []
    clock.advance(timedelta(seconds=59.999))
    assert take() == []
    clock.advance(timedelta(seconds=0.001))
    (second,) = take()
    assert (first.lost, second.lost) == (False, True)
    assert (second.message.id, second.message.attempt) == (first.message.id, 2)


def test_a_dispatcher_that_wakes_after_a_takeover_marks_nothing(
    clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    write("a")
    (late,) = take()
    clock.advance(timedelta(seconds=60))
    (owner,) = take()

    assert delivered(late) == []
    assert (of("a").state, of("a").owner) == ("sending", owner.owner)
    assert "outlived its lease" in caplog.text
    assert len(delivered(owner)) == 1
    # And once it is settled, not even the owner's own second mark does anything.
    assert marks.mark("default", [Finished(owner, Retry("late"), 0.1)]) == []
    assert (of("a").state, history("a")) == ("delivered", [("delivered", 2, "")])


def test_a_takeover_says_that_an_attempt_was_lost(clock: FrozenClock) -> None:
    write("a")
    take()
    clock.advance(timedelta(seconds=60))
    dispatch()
    assert history("a") == [("lost", 1, ""), ("delivered", 2, "250 ok")]


@pytest.mark.django_db(transaction=True)
def test_dispatchers_at_once_claim_each_message_once() -> None:
    with transaction.atomic():
        for number in range(24):
            outbox.send("mail", {"name": f"m{number}"}, destination=f"d{number % 12}")

    claimed = itertools.chain(*together([lambda: names(take_all(3))] * 3))
    assert sorted(claimed) == sorted(f"m{number}" for number in range(24))


# Turns


def test_a_destination_gets_its_share_at_once_and_no_more(clock: FrozenClock) -> None:
    write(*(f"m{number}" for number in range(AT_ONCE + 2)), to="one")
    write("other", to="two")
    assert sorted(names(take())) == ["m0", "m1", "other"]
    busy = {Lane("mail", "one"): 1, Lane("mail", "two"): 0}
    write("late", to="two")
    assert names(take(busy=busy)) == ["m2"]


def test_destinations_take_turns_however_long_the_queue_of_one_is(clock: FrozenClock) -> None:
    write(*(f"first {number}" for number in range(9)), to="long")
    clock.advance(timedelta(seconds=1))
    write("second", to="short")
    assert sorted(names(take(most=2))) == ["first 0", "second"]


def test_the_longest_due_comes_first(clock: FrozenClock) -> None:
    write("retried", "second")
    Mail.answers["retried"] = [Retry("no")]
    Mail.answers["second"] = [Retry("no")]
    dispatch()
    clock.advance(timedelta(seconds=5))
    write("fresh")
    clock.advance(timedelta(seconds=5))
    assert names(take(most=1)) == ["fresh"]


def test_those_that_wait_for_their_predecessor_do_not_hide_the_ones_behind_them(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "WINDOW", 5)
    write(*(f"m{number}" for number in range(8)), about="one")
    write("free")
    found = take_all()
    assert names(found) == ["m0", "free"]

    # Its end makes the next one due at once, whatever was put off meanwhile.
    delivered(found[0])
    assert names(take()) == ["m1"]


def test_claims_are_by_the_databases_clock_and_not_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import time_machine

    write("a")
    (held,) = take()
    with time_machine.travel(held.message.created_at + timedelta(hours=1)):
        assert take() == []
    assert states() == {"a": "sending"}
