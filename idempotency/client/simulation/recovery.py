"""Recovery: a busy server has an outage, its clients retry, and the question is what comes after.

Calls arrive at random (Poisson) whether or not the server is well, as those of many independent
users do. The server works in slices of 10 ms, in each of which it can do ``capacity · slice`` = 10
requests' worth of work. Turning a request away costs it 0.3 of serving one, so of x arrivals in one
slice it serves (10 - 0.3 · x) / 0.7 once x exceeds 10: the more arrive, the fewer are served, and
from 34 on none. Which ones is drawn. Every answer is given at the end of the slice, and a client
that was turned away waits as its strategy says; immediate retries are in the next slice. During the
outage every request is turned away.

What happens, at 850 calls a second for a capacity of 1,000 and with up to four attempts a call:

- without retries a tenth of the calls hits a full slice, always, and 765/s get an answer;
- with three retries, jittered or not, turning requests away takes the whole capacity: the load is
  four times what it was, and stays there. Good answers: 300/s with immediate retries (those that
  fail together return together, which leaves other slices empty), 130/s with full jitter;
- with full jitter and a budget of 10 % the load never exceeds 1.1 times the calls: 801/s.

These are means of many runs. A single run without a budget strays from its mean by a tenth: it
lives on the few slices that are not full. With a budget or without retries it strays by 1 %.

At 850/s retries are enough to start the collapse; the outage only makes it sudden. At 800/s the
server is well with jittered retries until the outage, and does not get well after it: two loads
hold themselves up, and the outage moves the server from one to the other. ``steady`` finds both.

The sources of the idea: Bronson et al., "Metastable Failures in Distributed Systems" (2021); Google
SRE book, "Addressing Cascading Failures". The numbers of the model are ours.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from idempotency.client.backoff import Backoff
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.simulation import strategies

__all__ = ["BUCKET", "NO_RETRIES", "Aftermath", "Scenario", "run", "steady", "strategy"]

#: Seconds: the client's own defaults, and one bucket of what is recorded.
BASE, CAP, INTERVAL = 0.1, 20.0, 1.0
BUCKET = 0.1
#: What the run without a second attempt is called, among the names of strategies.
NO_RETRIES = "no retries"
#: A share of lost attempts this close to the fixed point is the fixed point.
CLOSE = 1e-8

Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The traffic, the server and the outage. Times in seconds, rates a second."""

    rate: float = 850.0
    capacity: float = 1000.0
    #: What turning a request away costs, of what serving it costs.
    rejection: float = 0.3
    outage_from: float = 20.0
    outage_until: float = 40.0
    until: float = 100.0
    #: First try included.
    attempts: int = 4
    slice: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.outage_from <= self.outage_until < self.until < math.inf:
            raise ValueError("0 <= outage_from <= outage_until < until")
        if self.rate <= 0 or self.slice <= 0:
            raise ValueError("rate and slice are above 0")
        if self.capacity * self.slice < 1:
            raise ValueError(f"capacity is at least {1 / self.slice:g}, one request a slice")
        if not 0 <= self.rejection < 1:
            raise ValueError("rejection is 0 or more and below 1")
        if self.attempts < 1:
            raise ValueError("attempts are at least 1")

    def served(self, arrived: int) -> float:
        """How many of those that arrive in one slice are served, on average."""
        room = self.capacity * self.slice
        if arrived <= room:
            return arrived
        return max(0.0, (room - self.rejection * arrived) / (1 - self.rejection))

    def lost(self, load: float) -> float:
        """The share that is turned away of ``load`` attempts a second, independent ones."""
        mean = load * self.slice
        most = math.ceil(mean + 12 * math.sqrt(mean) + 12)
        logs = (x * math.log(mean) - mean - math.lgamma(x + 1) for x in range(most))
        served = sum(math.exp(log) * self.served(x) for x, log in enumerate(logs))
        return 1 - served / mean


@dataclass(slots=True, kw_only=True)
class Aftermath:
    """One run, and what it came to, in buckets of ``BUCKET`` seconds."""

    strategy: str
    #: Retries for each first attempt, or None for as many as the attempts allow.
    ratio: float | None
    seed: int
    scenario: Scenario
    attempts: list[int] = field(default_factory=list)
    good: list[int] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The strategy and its budget, as tables and pictures name the run."""
        return self.strategy + ("" if self.ratio is None else f" + {self.ratio:.0%} budget")

    def good_rate(self, begin: float, end: float) -> float:
        """Good answers a second between two times."""
        return _rate(self.good, begin, end)

    def load(self, begin: float, end: float) -> float:
        """Attempts that reach the server, a second, between two times."""
        return _rate(self.attempts, begin, end)


def _rate(buckets: list[int], begin: float, end: float) -> float:
    chosen = buckets[round(begin / BUCKET) : round(end / BUCKET)]
    return sum(chosen) / (len(chosen) * BUCKET)


def strategy(
    name: str, *, base: float = BASE, cap: float = CAP, interval: float = INTERVAL
) -> Backoff:
    """The strategy of that name, with the defaults of the client."""
    return strategies.named(name, base=base, cap=cap, interval=interval)


def run(
    name: str,
    scenario: Scenario,
    *,
    seed: int,
    backoff: Backoff | None = None,
    ratio: float | None = None,
    tell: Tell | None = None,
) -> Aftermath:
    """Simulate one outage. Runs with one seed see the same arrivals, whatever the strategy.

    ``name`` is a strategy's, or ``NO_RETRIES``. ``ratio`` is the budget's, shared by all clients.
    ``tell`` is called with 1 for every simulated second, to show progress.
    """
    waits: Callable[[], Iterator[float]] | None = None
    if name != NO_RETRIES:
        chosen, draws = backoff or strategy(name), random.Random(f"waits {seed}")
        waits = lambda: chosen.waits(draws)  # noqa: E731
    outcome = Aftermath(strategy=name, ratio=ratio, seed=seed, scenario=scenario)
    _Run(outcome, waits, tell or (lambda seconds: None)).play()
    return outcome


@dataclass(slots=True)
class _Attempt:
    number: int
    waits: Iterator[float] | None


class _Run:
    """One heap event an attempt: its arrival. The slices are only where the heap is read."""

    def __init__(
        self, outcome: Aftermath, waits: Callable[[], Iterator[float]] | None, tell: Tell
    ) -> None:
        self.outcome, self.scenario, self.tell = outcome, outcome.scenario, tell
        self.waits = waits
        self.now = 0.0
        self.budget: RetryBudget | None = None
        if outcome.ratio is not None:
            self.budget = RetryBudget(BudgetPolicy(ratio=outcome.ratio), clock=lambda: self.now)
        self.arrivals = random.Random(f"arrivals {outcome.seed}")
        self.server = random.Random(f"server {outcome.seed}")
        self.order = itertools.count()
        self.heap: list[tuple[float, int, _Attempt]] = []

    def play(self) -> None:
        scenario = self.scenario
        buckets = math.ceil(scenario.until / BUCKET)
        self.outcome.attempts, self.outcome.good = [0] * buckets, [0] * buckets
        self._expect_call(0.0)
        told = 0
        for number in range(round(scenario.until / scenario.slice)):
            begin, self.now = number * scenario.slice, (number + 1) * scenario.slice
            self._serve(begin, self._arrived(self.now))
            if int(self.now) > told:
                told = int(self.now)
                self.tell(1)

    def _expect_call(self, after: float) -> None:
        """Put the next call's first attempt on the heap."""
        time = after + self.arrivals.expovariate(self.scenario.rate)
        heapq.heappush(self.heap, (time, next(self.order), _Attempt(1, None)))

    def _arrived(self, end: float) -> list[_Attempt]:
        arrived = []
        while self.heap[0][0] < end:
            time, _, attempt = heapq.heappop(self.heap)
            arrived.append(attempt)
            if attempt.number == 1:
                self._expect_call(time)
                if self.budget is not None:
                    self.budget.credit()
        return arrived

    def _serve(self, begin: float, arrived: list[_Attempt]) -> None:
        scenario, served = self.scenario, 0
        bucket = int((begin + scenario.slice / 2) / BUCKET)
        if not scenario.outage_from <= begin < scenario.outage_until:
            served = self._whole(scenario.served(len(arrived)))
        self.outcome.attempts[bucket] += len(arrived)
        self.outcome.good[bucket] += served
        if served < len(arrived):
            self.server.shuffle(arrived)
        for attempt in arrived[served:]:
            self._retry(attempt)

    def _whole(self, served: float) -> int:
        """A whole number of requests, right on average."""
        return int(served) + (self.server.random() < served % 1)

    def _retry(self, attempt: _Attempt) -> None:
        if self.waits is None or attempt.number >= self.scenario.attempts:
            return
        if self.budget is not None and self.budget.spend() is None:
            return
        attempt.waits = attempt.waits or self.waits()
        attempt.number += 1
        time = self.now + next(attempt.waits)
        heapq.heappush(self.heap, (time, next(self.order), attempt))


def steady(scenario: Scenario, *, calm: bool, ratio: float | None = None) -> float:
    """Good answers a second in the long run, by the formula, if attempts are independent.

    The load is the fixed point of ``rate · (1 + p + p² + …)`` with p = ``lost(load)``, or what the
    budget allows where that is less. ``calm`` looks for it from a server that is well, otherwise
    from one at which everything fails; where the two differ, an outage moves the server from the
    first to the second.
    """
    lost = 0.0 if calm else 1.0
    load, change = scenario.rate, 1.0
    while abs(change) > CLOSE:
        each = sum(lost**retry for retry in range(scenario.attempts))
        load = scenario.rate * (each if ratio is None else min(each, 1 + ratio))
        change = 0.1 * (scenario.lost(load) - lost)
        lost += change
    return load * (1 - lost)
