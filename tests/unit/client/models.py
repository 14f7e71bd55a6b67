"""The rules of budget and breaker once more, plainly: keep everything, and count each time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from idempotency.client.breaker import BreakerPolicy, Outcome, State
from idempotency.client.budget import BudgetPolicy, Ticket


@dataclass
class ModelTime:
    """The sum of a clock's forward steps since the model was made."""

    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.seen = self.now = self.clock()

    def tell(self) -> float:
        self.now += max(0.0, self.clock() - self.seen)
        self.seen = self.clock()
        return self.now


@dataclass
class BudgetModel:
    """Every first attempt and every ticket that ever was."""

    policy: BudgetPolicy
    clock: Callable[[], float]
    first: list[int] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = ModelTime(self.clock)

    def credit(self) -> None:
        self.first.append(math.floor(self.time.tell()))

    def spend(self, *, hedge: bool) -> Ticket | None:
        second = math.floor(self.time.tell())
        oldest = second - self.policy.window + 1
        earned = sum(at >= oldest for at in self.first) * Fraction(str(self.policy.ratio))
        spent = sum(ticket.second >= oldest and not ticket.returned for ticket in self.tickets)
        if spent + 1 > max(0 if hedge else self.policy.floor, earned):
            return None
        self.tickets.append(Ticket(second))
        return self.tickets[-1]

    def refund(self, ticket: Ticket) -> None:
        if not ticket.returned:
            self.time.tell()
            ticket.returned = True


@dataclass
class ModelAdmission:
    """A call that the model let through."""

    generation: int
    started: float
    lease_ends: float = math.inf
    settled: bool = False


@dataclass
class BreakerModel:
    """Every result of the present generation, every probe that was ever let through."""

    policy: BreakerPolicy
    clock: Callable[[], float]
    rng: random.Random
    state: State = State.CLOSED
    generation: int = 0
    openings: int = 0
    open_until: float = 0.0
    results: list[tuple[float, Outcome, bool]] = field(default_factory=list)
    probes: list[ModelAdmission] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = ModelTime(self.clock)

    def admit(self) -> ModelAdmission | float:
        """The admission, or the seconds until a call is worth trying."""
        now = self.time.tell()
        if self.state is State.OPEN:
            if now < self.open_until:
                return self.open_until - now
            self._turn(State.HALF_OPEN)
        admission = ModelAdmission(self.generation, now)
        if self.state is State.HALF_OPEN:
            running = sum(not probe.settled and now < probe.lease_ends for probe in self.probes)
            wanted = self.policy.permits - len(self.results)
            if running >= self.policy.concurrent_probes or running >= wanted:
                return 1.0
            admission.lease_ends = now + self.policy.lease
            self.probes.append(admission)
        return admission

    def settle(self, admission: ModelAdmission, outcome: Outcome) -> None:
        if admission.settled:
            return
        admission.settled = True
        now = self.time.tell()
        if now >= admission.lease_ends or admission.generation != self.generation:
            return
        if outcome is Outcome.NEUTRAL:
            return
        slow = now - admission.started >= self.policy.slow_call
        self.results.append((now, outcome, slow))
        if self.state is State.CLOSED:
            if self._is_tripped(now):
                self._open(now)
        elif slow or outcome is Outcome.FAILURE:
            self._open(now)
        elif len(self.results) == self.policy.permits:
            self.openings = 0
            self._turn(State.CLOSED)

    def _is_tripped(self, now: float) -> bool:
        oldest = math.floor(now) - self.policy.window + 1
        recent = [result for result in self.results if math.floor(result[0]) >= oldest]
        failed = sum(outcome is Outcome.FAILURE for _, outcome, _ in recent)
        slow = sum(slow for _, _, slow in recent)
        return len(recent) >= self.policy.minimum_calls and (
            Fraction(failed, len(recent)) >= Fraction(str(self.policy.failure_ratio))
            or Fraction(slow, len(recent)) >= Fraction(str(self.policy.slow_ratio))
        )

    def _open(self, now: float) -> None:
        longest = min(self.policy.open_cap, self.policy.open_for * 2**self.openings)
        self.open_until = now + longest * (
            1 + self.policy.open_jitter * (2 * self.rng.random() - 1)
        )
        self.openings += 1
        self._turn(State.OPEN)

    def _turn(self, state: State) -> None:
        self.state = state
        self.generation += 1
        self.results, self.probes = [], []
