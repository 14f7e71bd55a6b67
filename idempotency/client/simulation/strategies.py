"""The six strategies by the names that options, tables and pictures use."""

from __future__ import annotations

from idempotency.client.backoff import (
    Backoff,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fixed,
    FullJitter,
    Immediate,
)

__all__ = ["NAMES", "named"]

#: In the order in which they are shown.
NAMES = ("immediate", "fixed", "exponential", "equal", "full", "decorrelated")


def named(
    name: str, *, base: float, cap: float, interval: float, first: float | None = None
) -> Backoff:
    """The strategy of that name, in seconds. KeyError: there is none.

    ``first`` is the ceiling of the first wait of those that double, ``base`` unless given. It does
    not reach decorrelated jitter, whose waits begin at ``base``.
    """
    first = min(cap, base if first is None else first)
    made: dict[str, Backoff] = {
        "immediate": Immediate(),
        "fixed": Fixed(interval),
        "exponential": Exponential(first, cap),
        "equal": EqualJitter(first, cap),
        "full": FullJitter(first, cap),
        "decorrelated": DecorrelatedJitter(base, cap),
    }
    return made[name]
