"""How much time is left for a call, and how the next hop learns of it.

The header ``X-Request-Deadline-Ms`` carries the milliseconds that are *left*, not a time of day:
no two machines need to agree on the clock. A hop starts counting when the request arrives, on a
clock that only moves forward, and grants its own calls less than it has. Source: gRPC's deadline
propagation (``grpc-timeout``).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

__all__ = ["HEADER", "Deadline", "DeadlineExceeded"]

HEADER = "X-Request-Deadline-Ms"

Clock = Callable[[], float]

_MILLISECONDS = re.compile(r"(-?)0*([0-9]+)")
#: Digits of milliseconds that are told apart (about 31 years).
_DIGITS = 12
#: Seconds. The header is rounded to a millisecond, which must not hide the difference.
_LEAST_MARGIN = 0.002


class DeadlineExceeded(Exception):
    """No time is left. What was not sent by now is not sent."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock (``clock``, seconds) after which nobody waits any more."""

    at: float
    clock: Clock = field(default=time.monotonic, repr=False, compare=False)

    @classmethod
    def after(cls, seconds: float, *, clock: Clock = time.monotonic) -> Self:
        """A deadline ``seconds`` from now; ``math.inf`` for none at all."""
        if math.isnan(seconds):
            raise ValueError("a deadline needs a number of seconds")
        return cls(clock() + seconds, clock)

    @classmethod
    def from_header(cls, value: str | None, *, limit: float, clock: Clock = time.monotonic) -> Self:
        """The deadline of a request that arrives now, at most ``limit`` seconds away.

        The header only shortens: a missing or unreadable one gives the limit. Zero, or less, is a
        deadline that has passed; answer 504 before any work. Never raises.
        """
        match = _MILLISECONDS.fullmatch(value.strip(" \t")) if isinstance(value, str) else None
        if match is None:
            return cls.after(limit, clock=clock)
        negative, digits = match.groups()
        if negative:
            return cls.after(0.0, clock=clock)
        asked = int(digits) / 1000 if len(digits) <= _DIGITS else math.inf
        return cls.after(min(limit, asked), clock=clock)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining() <= 0

    def allows(self, wait: float) -> bool:
        """Whether there is time left after a wait of so many seconds."""
        return wait < self.remaining()

    def require(self) -> None:
        """Raise ``DeadlineExceeded`` when no time is left."""
        if self.expired:
            raise DeadlineExceeded("no time is left for this call")

    def child(self, *, limit: float = math.inf, margin: float = 0.01) -> Self:
        """The deadline of a call that this one waits for: strictly earlier, by ``margin`` seconds.

        The margin is this hop's own time to make an answer out of the call's. ``limit`` (seconds
        from now) bounds the call further, an attempt's timeout for instance.
        """
        if margin < _LEAST_MARGIN:
            raise ValueError(f"margin is at least {_LEAST_MARGIN} s, or the hop sees no less")
        return type(self)(min(self.at - margin, self.clock() + limit), self.clock)

    def header(self) -> str | None:
        """The value to send: whole milliseconds, rounded down; None for a deadline without end."""
        left = self.remaining()
        return None if math.isinf(left) else str(min(int(left * 1000), 10**_DIGITS - 1))
