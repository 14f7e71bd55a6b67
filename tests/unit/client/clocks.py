"""A clock that the test moves."""

from __future__ import annotations


class SteeredClock:
    """Seconds, as ``time.monotonic`` gives them."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock; backward when ``seconds`` is negative."""
        self.now += seconds
