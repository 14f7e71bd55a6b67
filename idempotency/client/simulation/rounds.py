"""The fast engine of ``contention``: no heap, and whole arrays of attempts at a time.

Where a client's attempts fall does not depend on the others as long as it keeps failing; only which
one succeeds does. So no order among failures is needed. After a success at time S:

1. every attempt that read at or before S is a failure: advance each such client, all at once,
   until its read is after S;
2. of the attempts now pending, the one whose write comes first is the next success. Every write
   that came before it had read before S, and was counted in step 1.

One round a success, a handful of array operations a round; the result is exactly that of the heap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from idempotency.client.backoff import (
    Backoff,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fixed,
    FullJitter,
    Immediate,
)
from idempotency.client.simulation.contention import BUCKET, LEG, SPREAD, Tally, Tell

__all__ = ["by_rounds", "seeded", "waits"]

Floats: TypeAlias = "npt.NDArray[np.float64]"
Clients: TypeAlias = "npt.NDArray[np.intp]"

#: The next ``count`` legs of each client: an array of ``count`` rows.
Legs: TypeAlias = Callable[[Clients, int], Floats]
#: The next wait of each client.
Waits: TypeAlias = Callable[[Clients], Floats]


def by_rounds(clients: int, legs: Legs, wait: Waits, *, record: bool, tell: Tell) -> Tally:
    """Play it success by success. Same contract as ``contention.by_heap``, for arrays."""
    tally = Tally()
    who = np.arange(clients)
    first = legs(who, 3)
    read = first[0]
    write = read + first[1] + first[2]
    changed = -math.inf
    while who.size:
        while (failed := np.flatnonzero(read <= changed)).size:
            _fail(tally, failed, who[failed], read, write, legs, wait, record)
        winner = int(write.argmin())
        changed = float(write[winner])
        tally.calls += 1
        if record:
            tally.arrivals[int(changed / BUCKET)] += 1
        who, read, write = (_without(array, winner) for array in (who, read, write))
        tell(1)
    tally.duration = changed
    return tally


def _fail(
    tally: Tally,
    failed: Clients,
    who: Clients,
    read: Floats,
    write: Floats,
    legs: Legs,
    wait: Waits,
    record: bool,
) -> None:
    """Count the pending attempts at the positions ``failed``, and put the next ones there."""
    now = write[failed]
    pause = wait(who)
    network = legs(who, 4)
    begun = now + network[0] + pause + network[1]
    read[failed] = begun
    write[failed] = begun + network[2] + network[3]
    tally.calls += failed.size
    tally.waited += float(pause.sum())
    if record:
        buckets, counts = np.unique((now / BUCKET).astype(int), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            tally.arrivals[bucket] += count


def _without(array: Floats, position: int) -> Floats:
    """Drop one element in constant time: the last one takes its place."""
    array[position] = array[-1]
    return array[:-1]


def seeded(clients: int, backoff: Backoff, *, seed: int, record: bool, tell: Tell) -> Tally:
    """Play it with numpy's own random numbers."""
    rng = np.random.default_rng(seed)

    def legs(who: Clients, count: int) -> Floats:
        return np.abs(rng.normal(LEG, SPREAD, (count, who.size)))

    return by_rounds(clients, legs, waits(backoff, clients, rng), record=record, tell=tell)


def waits(backoff: Backoff, clients: int, rng: np.random.Generator) -> Waits:
    """The formulas of ``backoff.py``, one wait for each of many clients in one operation.

    TypeError: not one of the six strategies.
    """
    match backoff:
        case Immediate():
            return lambda who: np.zeros(who.size)
        case Fixed(interval):
            return lambda who: np.full(who.size, interval)
        case DecorrelatedJitter(base, cap):
            return _decorrelated(base, cap, clients, rng)
        case Exponential(base, cap):
            ceiling = _ceilings(base, cap, clients)
            return ceiling
        case EqualJitter(base, cap):
            ceiling = _ceilings(base, cap, clients)
            return lambda who: ceiling(who) / 2 * (1 + rng.random(who.size))
        case FullJitter(base, cap):
            ceiling = _ceilings(base, cap, clients)
            return lambda who: ceiling(who) * rng.random(who.size)
    raise TypeError(f"no array form of {type(backoff).__name__}: use the heap engine")


def _ceilings(base: float, cap: float, clients: int) -> Waits:
    """``v(n) = min(cap, base · 2ⁿ)``, each client with its own n."""
    ceilings = np.full(clients, base)

    def ceiling(who: Clients) -> Floats:
        now = ceilings[who]
        ceilings[who] = np.minimum(cap, now * 2)
        return now

    return ceiling


def _decorrelated(base: float, cap: float, clients: int, rng: np.random.Generator) -> Waits:
    """``s ← min(cap, U(base, 3s))``, each client with its own s."""
    latest = np.full(clients, base)

    def wait(who: Clients) -> Floats:
        drawn = base + rng.random(who.size) * (3 * latest[who] - base)
        latest[who] = np.minimum(cap, drawn)
        return latest[who]

    return wait
