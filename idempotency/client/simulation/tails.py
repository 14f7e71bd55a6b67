"""The tail of latency, with and without hedging.

Latencies are Exp(1), in units of their mean. A request that is not answered after its 95th
percentile d = ln 20 = 2.996 is sent a second time, and the first answer wins. Beyond d::

    P(latency > t) = exp(-t) · exp(-(t - d))

so that p99 falls from 4.605 to (d + ln 100) / 2 = 3.800 and p99.9 from 6.908 to 4.952, for 5 % more
requests. Source: Dean and Barroso, "The Tail at Scale" (2013).

The delay is not told to the client here: it is learnt, by ``hedging.py``, from the time that the
latest successful requests took from their first copy to their answer. (Learnt from the winning
copy's own time instead, the delay would shrink until one request in ten is sent twice.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from idempotency.client.hedging import HedgePolicy, LatencyWindow

__all__ = ["Tail", "expected", "run"]

#: Requests a second, on the clock of the window of latencies.
RATE = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The latencies of one run, sorted, and what they cost."""

    hedged: bool
    seed: int
    latencies: tuple[float, ...]
    #: Second copies that were sent.
    copies: int

    @property
    def extra_load(self) -> float:
        """Second copies for each request."""
        return self.copies / len(self.latencies)

    def quantile(self, q: float) -> float:
        """The nearest rank. q is from 0 to 1."""
        return self.latencies[max(0, math.ceil(q * len(self.latencies)) - 1)]


def run(
    requests: int,
    *,
    hedged: bool,
    seed: int,
    policy: HedgePolicy | None = None,
    tell: Callable[[int], None] | None = None,
) -> Tail:
    """Send that many requests, at least one.

    ``tell`` is called with 1 for each, to show progress.
    """
    if requests < 1:
        raise ValueError("there must be at least one request")
    rng = random.Random(seed)
    now, copies = 0.0, 0
    window = LatencyWindow(policy, clock=lambda: now)
    latencies = []
    for _ in range(requests):
        now += 1 / RATE
        latency, second = rng.expovariate(1.0), rng.expovariate(1.0)
        delay = window.quantile() if hedged else None
        if delay is not None and latency > delay:
            copies += 1
            latency = min(latency, delay + second)
        window.add(latency)
        latencies.append(latency)
        if tell is not None:
            tell(1)
    return Tail(hedged=hedged, seed=seed, latencies=tuple(sorted(latencies)), copies=copies)


def expected(q: float, *, hedge_at: float | None = None) -> float:
    """The quantile q by the formula, with a second copy after the quantile ``hedge_at``."""
    alone = -math.log1p(-q)
    delay = alone if hedge_at is None else -math.log1p(-hedge_at)
    return alone if alone <= delay else (delay + alone) / 2
