"""The sliding window against a list of everything that ever happened."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.client.window import ForwardClock, SlidingWindow, exact
from tests.unit.client.clocks import SteeredClock


@pytest.mark.parametrize("seconds", range(1, 61))
def test_totals_are_those_of_a_list_of_all_events(seconds: int) -> None:
    rng = random.Random(seconds)
    window, events, now = SlidingWindow(seconds, kinds=2), [], 0.0
    for _ in range(800):
        # Mostly within a second, now and then a gap as long as the window, or ten times that.
        now += rng.choice([0, 0.125, 0.5, 1, rng.uniform(0, 2 * seconds), seconds, 10 * seconds])
        second = window.advance(now)
        assert second == math.floor(now)
        kind = rng.randrange(2)
        window.add(kind)
        events.append((second, kind))
        if rng.random() < 0.2:
            old = rng.choice(events[-50:])
            events.remove(old)
            window.take_back(*old)
        recent = [kind for at, kind in events if at > second - seconds]
        assert window.totals() == (recent.count(0), recent.count(1))


def test_everything_can_be_forgotten_at_once() -> None:
    window = SlidingWindow(10, kinds=1)
    for now in range(10):
        window.advance(now)
        window.add(0)
    window.clear()
    assert window.totals() == (0,)


@pytest.mark.parametrize("seconds", [0, -1, 3601])
def test_a_window_of_no_length_or_an_enormous_one_is_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="seconds"):
        SlidingWindow(seconds, kinds=1)


@given(st.lists(st.integers(-7200, 7200)))
def test_time_is_the_sum_of_the_forward_steps(steps: list[int]) -> None:
    source = SteeredClock(5000)
    clock = ForwardClock(source)
    elapsed = clock()
    for step in steps:
        source.advance(step)
        elapsed += max(0, step)
        assert clock() == elapsed


@pytest.mark.parametrize(
    ("written", "meant"),
    [(0.1, Fraction(1, 10)), (0.6, Fraction(3, 5)), (1 / 3, Fraction(1, 3)), (2, Fraction(2))],
)
def test_a_ratio_is_what_is_written_and_not_its_double(written: float, meant: Fraction) -> None:
    assert exact(written) == meant
