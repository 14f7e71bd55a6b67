"""Counting what happened in the last seconds, on a clock that cannot run backward.

Neither class is safe for threads: whoever owns one holds a lock around it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

__all__ = ["ForwardClock", "SlidingWindow", "exact"]

#: Above this, a window's sums would be slow and its memory of slots useless.
LONGEST_WINDOW = 3600


class ForwardClock:
    """A clock of seconds that stands still where its source steps back.

    Time is the sum of the source's forward steps: after a step back by an hour nothing expires
    an hour late, which is what a plain ``max(now, latest)`` would do.
    """

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source
        self._latest = -math.inf
        self._shift = 0.0

    def __call__(self) -> float:
        now = self._source() + self._shift
        if now < self._latest:
            self._shift += self._latest - now
            now = self._latest
        self._latest = now
        return now


class SlidingWindow:
    """Counts of ``kinds`` of events over the current second and the ``seconds - 1`` before it.

    One bucket a second, so a window of 60 s remembers an event for 59 to 60 s. Each second's bucket
    is emptied before it is used again, also after a gap without events. Constant memory; adding and
    reading take constant time, amortised.
    """

    def __init__(self, seconds: int, kinds: int) -> None:
        if not 1 <= seconds <= LONGEST_WINDOW:
            raise ValueError(f"a window has 1 to {LONGEST_WINDOW} seconds")
        self._buckets = [[0] * kinds for _ in range(seconds)]
        self._totals = [0] * kinds
        self._second: int | None = None

    def advance(self, now: float) -> int:
        """Forget what is too old at ``now``, never less than before. Return the second it is in."""
        second = math.floor(now)
        if self._second is not None:
            gap = min(second - self._second, len(self._buckets))
            for offset in range(1, gap + 1):
                self._empty((self._second + offset) % len(self._buckets))
        self._second = second
        return second

    def add(self, kind: int) -> None:
        """Count one event in the second that ``advance`` reached."""
        self._change(self._second or 0, kind, 1)

    def take_back(self, second: int, kind: int) -> None:
        """Forget one event that was counted in ``second``, unless it is forgotten already."""
        if self._second is not None and self._second - second < len(self._buckets):
            self._change(second, kind, -1)

    def totals(self) -> Sequence[int]:
        """The events of each kind in the window."""
        return tuple(self._totals)

    def clear(self) -> None:
        """Forget everything."""
        for index in range(len(self._buckets)):
            self._empty(index)

    def _change(self, second: int, kind: int, by: int) -> None:
        self._buckets[second % len(self._buckets)][kind] += by
        self._totals[kind] += by

    def _empty(self, index: int) -> None:
        bucket = self._buckets[index]
        for kind, count in enumerate(bucket):
            self._totals[kind] -= count
            bucket[kind] = 0


@functools.lru_cache(maxsize=64)
def exact(ratio: float) -> Fraction:
    """A ratio as it is written: 0.1 is one tenth, not the double next to it.

    Sums are compared by whole numbers, ``part · denominator ≥ whole · numerator``, so nothing is
    rounded at the boundary.
    """
    return Fraction(str(ratio)).limit_denominator(1_000_000)
