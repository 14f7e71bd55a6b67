"""Room for calls: reserved before the work, kept for its call, free again whatever happens."""

from __future__ import annotations

from contextlib import suppress

import pytest

from idempotency.client import BulkheadFull
from payments.gateways.room import FORGOTTEN, Room


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_place_that_was_kept_is_its_calls_and_nobody_elses() -> None:
    room = Room(1)
    with room.reserve() as place:
        place.keep_for("ch_1")
    with pytest.raises(BulkheadFull), room.hold("ch_2"):
        pass
    with pytest.raises(BulkheadFull), room.reserve():
        pass
    with room.hold("ch_1"):
        assert room.in_use == 1
    assert room.in_use == 0


def test_place_that_nobody_kept_is_free_at_once() -> None:
    room = Room(1)
    with room.reserve():
        assert room.in_use == 1
    assert room.in_use == 0


def test_work_that_fails_gives_its_place_back() -> None:
    room = Room(1)
    with suppress(ZeroDivisionError), room.reserve() as place:
        place.keep_for("ch_1")
        raise ZeroDivisionError
    assert room.in_use == 0
    with suppress(ZeroDivisionError), room.hold("ch_1"):
        raise ZeroDivisionError
    assert room.in_use == 0


def test_place_whose_work_was_rolled_back_is_forgotten() -> None:
    clock = Clock()
    room = Room(1, clock=clock)
    with room.reserve() as place:
        place.keep_for("ch_1")
    clock.now = FORGOTTEN
    with room.reserve() as place:
        place.keep_for("ch_2")
    # Its call comes late: the place is somebody else's, and is not given back twice.
    with pytest.raises(BulkheadFull), room.hold("ch_1"):
        pass
    with room.hold("ch_2"):
        assert room.in_use == 1
    assert room.in_use == 0


def test_room_that_nobody_came_for_is_said_to_be_free() -> None:
    clock = Clock()
    room = Room(1, clock=clock)
    with room.reserve() as place:
        place.keep_for("ch_1")
    assert isinstance(room.refusal(), BulkheadFull)
    clock.now = FORGOTTEN
    assert room.refusal() is None


def test_call_that_nobody_reserved_for_takes_a_place() -> None:
    room = Room(1)
    with room.hold("ch_1"):
        with pytest.raises(BulkheadFull), room.hold("ch_2"):
            pass
        assert room.in_use == 1
