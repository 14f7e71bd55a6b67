"""Asking the other side on a person's word: bounded in time, told, and settled as it answers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from idempotency import doubts
from idempotency.core.decisions import Replay
from idempotency.core.states import State
from idempotency.http.deadlines import current_deadline
from idempotency.models import EventKind
from idempotency.operations import Outcome, Unknown
from idempotency.operators import Seen
from tests.integration.portable.conformance.harness import (
    NOW,
    Key,
    at,
    elsewhere,
    seconds,
    values_of,
)
from tests.integration.portable.doubts.payouts import (
    BOB,
    MARIA,
    NOTHING,
    PAID,
    REFUSED,
    Gift,
    paid,
    says,
    stand,
    stays,
)
from tests.integration.portable.jobs.shipments import Shipment

pytestmark = pytest.mark.django_db

Configure = Callable[..., None]


def ask(key: Key, **options: Any) -> doubts.Asked | None:
    row = key.row
    return doubts.ask(row.pk, seen=options.pop("seen", Seen.of(row)), person=MARIA, **options)


def ask_again(key: Key, **options: Any) -> doubts.Asked | None:
    row = key.row
    seen = options.pop("seen", Seen.of(row))
    return doubts.ask_again(row.pk, seen=seen, person=BOB, reason="it is back", **options)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (PAID, {"answer": "done", "record": "b1", "because": ""}),
        (REFUSED, {"answer": "refused", "record": "closed", "because": ""}),
        (NOTHING, {"answer": "not_sent", "record": "", "because": "unheard of"}),
        (Unknown("away"), {"answer": "unknown", "record": "", "because": "away"}),
    ],
)
def test_asking_settles_nothing_and_is_told(answer: Outcome, told: dict[str, str]) -> None:
    key = stand()
    before = key.row
    says(answer)

    asked = ask(key)

    assert asked == doubts.Asked(answer)
    assert stays(key, before)
    assert paid() == []
    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.ASKED, "maria")
    assert event.data == told | {"owner": str(before.owner)}


def test_a_look_up_without_an_end_is_given_up_in_time(configure: Configure) -> None:
    configure(LOOK_UP_TIMEOUT=0.05)
    key, go_on = stand(), threading.Event()
    left: list[float] = []

    def hang() -> Outcome:
        deadline = current_deadline()
        assert deadline is not None
        left.append(deadline.remaining())
        go_on.wait(30)
        return PAID

    Shipment.found["k"] = hang
    asked = ask(key)
    go_on.set()
    assert asked == doubts.Asked(Unknown("no answer within 0.05 s"))
    assert len(left) == 1
    assert left[0] <= 0.05
    assert key.row.state == State.IN_DOUBT


@pytest.mark.parametrize("what", [ask, ask_again])
def test_nobody_is_asked_about_a_key_that_changed(what: Callable[..., Any]) -> None:
    key = stand()
    says(PAID)
    was = Seen.of(key.row)
    for other in (
        Seen(uuid.uuid4(), was.state, was.recovery_point),
        Seen(was.owner, State.PROCESSING, was.recovery_point),
        Seen(was.owner, was.state, "elsewhere"),
    ):
        assert what(key, seen=other) is None
    assert Shipment.asked == []
    assert key.row.state == State.IN_DOUBT


def test_asking_again_settles_as_the_other_side_says() -> None:
    key = stand(minor=10_000_000)
    says(PAID)

    assert ask_again(key) == doubts.Asked(PAID, "done")

    assert isinstance(key.claim(), Replay)
    assert paid() == ["k"]
    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.RESOLVED, "bob")
    assert event.reason == "it is back: bank was asked, and has done it"


def test_asking_again_takes_one_person_whatever_the_amount(configure: Configure) -> None:
    configure(FOUR_EYES_ABOVE={"*": 0})
    key = stand(minor=10_000_000)
    says(REFUSED)
    assert ask_again(key) == doubts.Asked(REFUSED, "refused")
    assert key.row.state == State.SUCCEEDED


def test_what_would_be_deduped_is_called_again() -> None:
    key = stand(kind=Gift)
    says(NOTHING)
    assert ask_again(key) == doubts.Asked(NOTHING, "resumed")
    assert key.row.state == State.PROCESSING
    assert key.events()[-1].actor == "bob"


def test_that_there_is_nothing_is_not_believed_too_early() -> None:
    with at(NOW):
        key = stand()
        says(NOTHING)
        assert ask_again(key) == doubts.Asked(NOTHING)
        assert key.row.state == State.IN_DOUBT
        assert key.events()[-1].kind == EventKind.ASKED
        assert key.events()[-1].reason == "it is back"
    with at(NOW + seconds(3600)):
        assert ask_again(key) == doubts.Asked(NOTHING, "not_sent")
        assert key.row.state == State.FAILED


@pytest.mark.django_db(transaction=True)
def test_asking_again_yields_to_whoever_was_faster() -> None:
    key = stand(doubt=False, lease=timedelta(0))

    def overtaken() -> Outcome:
        elsewhere(lambda: key.store.take_over(key.row.pk, seconds(30)))
        return PAID

    Shipment.found["k"] = overtaken
    assert ask_again(key) is None
    assert paid() == []


def test_the_log_is_written_with_the_end_or_neither() -> None:
    key = stand()
    says(PAID)

    def full() -> None:
        raise RuntimeError("the log is full")

    with pytest.raises(RuntimeError, match="the log is full"):
        ask_again(key, also=full)
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])
    with pytest.raises(RuntimeError, match="the log is full"):
        ask(key, also=full)
    assert EventKind.ASKED not in [event.kind for event in key.events()]


def test_a_doubt_ends_with_its_line_in_the_log_or_not_at_all() -> None:
    key = stand(kind=Gift)
    before = values_of(key.row)
    says(NOTHING)

    def away() -> None:
        raise OperationalError

    with pytest.raises(OperationalError):
        ask_again(key, also=away)
    assert values_of(key.row) == before
    assert EventKind.RESOLVED not in [event.kind for event in key.events()]
