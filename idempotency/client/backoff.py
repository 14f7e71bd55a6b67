"""How long to wait before the next attempt.

``v(n) = min(cap, base · 2ⁿ)`` seconds, n = 0 for the first wait. The cap comes first and the draw
after it: jitter added before the cap vanishes at the cap, and jitter added after it exceeds it.

============  ======================================  =========  =============
strategy      wait                                    mean       variance
============  ======================================  =========  =============
immediate     0                                       0          0
fixed         interval                                interval   0
exponential   v                                       v          0
equal jitter  v/2 + U(0, v/2)                         3v/4       v²/48
full jitter   U(0, v)                                 v/2        v²/12
decorrelated  s ← min(cap, U(base, 3s)), s₀ = base    see class
============  ======================================  =========  =============

A strategy is immutable and may be shared by every thread; what one call remembers lives in the
iterator that ``waits`` returns. Strategies never end: the number of attempts, the deadline and the
budget decide when to stop.

Source: AWS Architecture Blog, "Exponential Backoff and Jitter" (2015), and its simulator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "Backoff",
    "DecorrelatedJitter",
    "EqualJitter",
    "Exponential",
    "Fixed",
    "FullJitter",
    "Immediate",
]

#: Seconds.
BASE, CAP = 0.1, 20.0

# The system's source needs no seed, so forked workers cannot draw the same sequence.
_system = random.SystemRandom()


class Backoff(Protocol):
    """What the attempt loop asks of a strategy."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        """Begin one call: yield the seconds before attempt 2, attempt 3, … without end.

        ``rng`` is the system's random source unless given. A seeded one that is made before a fork
        draws the same in every child.
        """
        ...


@dataclass(frozen=True, slots=True)
class Immediate:
    """No wait at all. For comparison: it turns an overload into a longer one."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        while True:
            yield 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``interval`` seconds. For comparison: clients that failed together return together."""

    interval: float = 1.0

    def __post_init__(self) -> None:
        _require(0 <= self.interval < math.inf, "interval must be a number of seconds, 0 or more")

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        while True:
            yield self.interval


@dataclass(frozen=True, slots=True)
class _Doubling:
    """``base`` doubled for every wait, up to ``cap`` (both in seconds, 0 < base ≤ cap)."""

    base: float = BASE
    cap: float = CAP

    def __post_init__(self) -> None:
        _require_bounds(self.base, self.cap)

    def ceiling(self, n: int) -> float:
        """``v(n) = min(cap, base · 2ⁿ)``, for any n ≥ 0: large ones do not overflow."""
        try:
            return min(self.cap, math.ldexp(self.base, n))
        except OverflowError:
            return self.cap

    def ceilings(self) -> Iterator[float]:
        """``v(0), v(1), …``"""
        ceiling = self.base
        while True:
            yield ceiling
            ceiling = min(self.cap, ceiling * 2)


@dataclass(frozen=True, slots=True)
class Exponential(_Doubling):
    """Exactly ``v(n)``. For comparison: it spreads clients no better than a fixed wait."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        return self.ceilings()


@dataclass(frozen=True, slots=True)
class EqualJitter(_Doubling):
    """``v/2 + U(0, v/2)``: never less than half of the ceiling. Mean 3v/4, variance v²/48."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        draw = (rng or _system).uniform
        for ceiling in self.ceilings():
            yield ceiling / 2 + draw(0, ceiling / 2)


@dataclass(frozen=True, slots=True)
class FullJitter(_Doubling):
    """``U(0, v)``: the default. Mean v/2, variance v²/12."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        draw = (rng or _system).uniform
        for ceiling in self.ceilings():
            yield draw(0, ceiling)


@dataclass(frozen=True, slots=True)
class DecorrelatedJitter:
    """``s ← min(cap, U(base, 3s))``, s₀ = base: each wait is drawn from the one before it.

    The lower bound stays at ``base``; with the last wait in its place the waits could only grow.
    Far below the cap ``E[sₙ] = base · (2 · 1.5ⁿ - 1)``, n = 1 for the first wait. In the long run
    many draws are the cap itself: 27 % with base 5 and cap 2,000, whose mean is then 912.
    """

    base: float = BASE
    cap: float = CAP

    def __post_init__(self) -> None:
        _require_bounds(self.base, self.cap)

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        draw = (rng or _system).uniform
        wait = self.base
        while True:
            wait = min(self.cap, draw(self.base, wait * 3))
            yield wait


def _require_bounds(base: float, cap: float) -> None:
    _require(0 < base <= cap < math.inf, "base and cap are seconds, with 0 < base <= cap")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
