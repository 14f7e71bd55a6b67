"""Deadlines: relative, monotonic, and shorter at every hop."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotency.client.deadline import Deadline, DeadlineExceeded
from tests.unit.client.clocks import SteeredClock


def test_time_left_runs_down_to_zero_and_no_further(clock: SteeredClock) -> None:
    deadline = Deadline.after(10, clock=clock)
    assert deadline.remaining() == 10
    clock.advance(4)
    assert deadline.remaining() == 6
    assert not deadline.expired
    clock.advance(6)
    assert deadline.remaining() == 0
    assert deadline.expired
    clock.advance(1)
    assert deadline.remaining() == 0


def test_a_wait_is_allowed_only_if_time_is_left_after_it(clock: SteeredClock) -> None:
    deadline = Deadline.after(10, clock=clock)
    assert deadline.allows(9.99)
    assert not deadline.allows(10)
    assert not deadline.allows(3600)


def test_an_expired_deadline_raises_when_time_is_required(clock: SteeredClock) -> None:
    deadline = Deadline.after(1, clock=clock)
    deadline.require()
    clock.advance(1)
    with pytest.raises(DeadlineExceeded):
        deadline.require()


@pytest.mark.parametrize(
    ("value", "left"),
    [("1500", 1.5), (" 250\t", 0.25), ("0", 0.0), ("000", 0.0), ("-5", 0.0), ("29999", 29.999)],
)
def test_the_header_is_in_milliseconds(clock: SteeredClock, value: str, left: float) -> None:
    assert Deadline.from_header(value, limit=30, clock=clock).remaining() == pytest.approx(left)


@pytest.mark.parametrize("value", ["30001", "99999999", "9" * 400, "9" * 100_000])
def test_the_receiver_clamps_the_header_to_its_own_limit(clock: SteeredClock, value: str) -> None:
    assert Deadline.from_header(value, limit=30, clock=clock).remaining() == 30


@pytest.mark.parametrize("value", [None, "", "soon", "1.5", "1e3", "+5", "--5", "5ms", "٣", "5, 5"])
def test_an_unreadable_header_leaves_the_limit(clock: SteeredClock, value: str | None) -> None:
    assert Deadline.from_header(value, limit=30, clock=clock).remaining() == 30


@given(st.text())
@example("9" * 5000)
def test_no_header_raises(value: str) -> None:
    assert 0 <= Deadline.from_header(value, limit=30).remaining() <= 30


@pytest.mark.parametrize("value", ["0", "-1"])
def test_zero_milliseconds_left_is_a_deadline_that_has_passed(value: str) -> None:
    """Answer 504 before any work."""
    assert Deadline.from_header(value, limit=30).expired


@given(left=st.floats(0.001, 1e6), margin=st.floats(0.002, 10), hops=st.integers(1, 20))
def test_each_hop_sees_less_than_its_parent(left: float, margin: float, hops: int) -> None:
    clock = SteeredClock(1000.0)
    parent = Deadline.after(left, clock=clock)
    for _ in range(hops):
        child = parent.child(margin=margin)
        assert child.at < parent.at
        sent, seen = parent.header(), child.header()
        assert sent is not None
        assert seen is not None
        assert int(seen) < int(sent) or int(seen) == 0
        parent = Deadline.from_header(seen, limit=math.inf, clock=clock)
        assert parent.remaining() < child.remaining() + 1e-6


def test_a_child_is_bounded_by_its_own_limit_too(clock: SteeredClock) -> None:
    parent = Deadline.after(10, clock=clock)
    assert parent.child(limit=2).remaining() == 2
    assert parent.child(limit=60).remaining() == pytest.approx(9.99)


@pytest.mark.parametrize("margin", [0.001, 0, -1])
def test_a_child_as_late_as_its_parent_is_refused(clock: SteeredClock, margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        Deadline.after(10, clock=clock).child(margin=margin)


def test_a_deadline_without_end_is_not_announced(clock: SteeredClock) -> None:
    deadline = Deadline.after(math.inf, clock=clock)
    assert deadline.header() is None
    assert deadline.allows(1e9)
    assert deadline.child(limit=2).header() == "2000"


def test_a_deadline_that_is_no_number_is_refused(clock: SteeredClock) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Deadline.after(math.nan, clock=clock)
