"""Contention: ``clients`` update one row at once, each until its own update has succeeded.

One attempt reads the row's version and then writes with the version it read; the write succeeds
if nobody's write has succeeded since that read. The network takes four legs of |N(10, 2)| ms::

    client ──1──▶ server reads ──2──▶ client ──3──▶ server writes ──4──▶ client, waits if refused

The number to look at is ``calls``: the writes that reach the server until the last client is done.
Without contention it would be one a client.

The model, its legs and its times (base 5 ms, cap 2,000 ms) are those of the AWS Architecture Blog,
"Exponential Backoff and Jitter" (2015). Its simulator counts the attempt before it waits, so that
the first ceiling is 2 · base; ``strategy`` does the same, because the published numbers do. The
default interval of the fixed strategy, 100 ms, is ours: the source does not have one.

Cross-check, without simulating: of N clients, whose number falls about linearly to none at time T,
N/2 are at work on average, and each makes one call per 40 ms plus one mean wait::

    calls ≈ N · T / (2 · (40 ms + mean wait))

It holds within 10 % from some thousands of clients on. With fewer, the last ones stretch T: at a
hundred, T is mostly somebody's longest wait.
"""

from __future__ import annotations

import heapq
import importlib.util
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from idempotency.client.backoff import Backoff
from idempotency.client.simulation import strategies

__all__ = ["BASE", "BUCKET", "CAP", "INTERVAL", "Contest", "Tally", "by_heap", "run", "strategy"]

#: Seconds: of the waits, of one network leg (mean, standard deviation), of one bucket of arrivals.
BASE, CAP, INTERVAL = 0.005, 2.0, 0.1
LEG, SPREAD = 0.010, 0.002
BUCKET = 0.1

Tell = Callable[[int], None]


@dataclass(slots=True)
class Tally:
    """What an engine counts. Seconds are simulated ones."""

    #: Writes that reached the server, successful or not.
    calls: int = 0
    #: When the last client's write succeeded, in seconds.
    duration: float = 0.0
    #: Seconds that the strategy made clients wait, all together.
    waited: float = 0.0
    #: Calls in each ``BUCKET``; empty unless they were asked for.
    arrivals: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One run, and what it came to."""

    strategy: str
    clients: int
    seed: int
    engine: str
    tally: Tally

    @property
    def mean_wait(self) -> float:
        """Seconds of wait for each call."""
        return self.tally.waited / self.tally.calls

    @property
    def fluid_calls(self) -> float:
        """The calls that the cross-check of this module expects from duration and mean wait."""
        return self.clients * self.tally.duration / (2 * (4 * LEG + self.mean_wait))

    def series(self) -> list[int]:
        """Calls in each ``BUCKET`` from the start to the end."""
        arrivals = self.tally.arrivals
        return [arrivals[bucket] for bucket in range(max(arrivals, default=-1) + 1)]


def strategy(
    name: str, *, base: float = BASE, cap: float = CAP, interval: float = INTERVAL
) -> Backoff:
    """The strategy of that name with the first ceiling of this model, 2 · ``base``."""
    return strategies.named(name, base=base, cap=cap, interval=interval, first=2 * base)


def run(
    name: str,
    clients: int,
    *,
    seed: int,
    backoff: Backoff | None = None,
    engine: str = "auto",
    record: bool = False,
    tell: Tell | None = None,
) -> Contest:
    """Simulate one contest of at least one client.

    ``engine`` is ``heap`` (plain Python, any ``backoff``), ``rounds`` (numpy, the six strategies),
    or ``auto``: the faster one that is installed. They draw different numbers from one seed.
    ``record`` counts arrivals. ``tell`` is called with 1 at every success, to show progress.
    """
    if clients < 1:
        raise ValueError("there must be at least one client")
    backoff = backoff or strategy(name)
    tell = tell or (lambda successes: None)
    if engine == "auto":
        engine = "rounds" if importlib.util.find_spec("numpy") else "heap"
    if engine == "rounds":
        from idempotency.client.simulation import rounds

        tally = rounds.seeded(clients, backoff, seed=seed, record=record, tell=tell)
    else:
        tally = _seeded_heap(clients, backoff, seed=seed, record=record, tell=tell)
    return Contest(strategy=name, clients=clients, seed=seed, engine=engine, tally=tally)


def by_heap(
    clients: int,
    leg: Callable[[int], float],
    wait: Callable[[int], float],
    *,
    record: bool,
    tell: Tell,
) -> Tally:
    """Play it with one heap event an attempt: the arrival of its write at the server.

    ``leg`` and ``wait`` give the seconds of a client's next network leg and next wait. The time of
    the read needs no event of its own: it is compared with the latest success when the write
    arrives.
    """
    tally = Tally()
    heap = []
    for client in range(clients):
        read = leg(client)
        heap.append((read + leg(client) + leg(client), client, read))
    heapq.heapify(heap)
    changed = -math.inf
    while heap:
        now, client, read = heap[0]
        tally.calls += 1
        if record:
            tally.arrivals[int(now / BUCKET)] += 1
        if read > changed:
            changed = now
            heapq.heappop(heap)
            tell(1)
            continue
        pause = wait(client)
        tally.waited += pause
        read = now + leg(client) + pause + leg(client)
        heapq.heapreplace(heap, (read + leg(client) + leg(client), client, read))
    tally.duration = changed
    return tally


def _seeded_heap(clients: int, backoff: Backoff, *, seed: int, record: bool, tell: Tell) -> Tally:
    rng = random.Random(seed)
    normal = rng.gauss
    waits = [backoff.waits(rng).__next__ for _ in range(clients)]
    return by_heap(
        clients,
        lambda client: abs(normal(LEG, SPREAD)),
        lambda client: waits[client](),
        record=record,
        tell=tell,
    )
