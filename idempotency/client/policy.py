"""How calls are made: the numbers, and the pieces that all calls of one operation share."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypedDict, Unpack

from idempotency.client.backoff import BASE, Backoff, FullJitter
from idempotency.client.breaker import (
    BreakerPolicy,
    BreakerProtocol,
    BreakerRegistry,
    CircuitBreaker,
)
from idempotency.client.budget import BudgetProtocol, RetryBudget
from idempotency.client.classification import Answer, Decision, Trouble, classify
from idempotency.client.hedging import HedgePolicy, Hedging
from idempotency.client.observers import Observer

__all__ = ["CallPolicy", "Classifier", "Gear", "Gears", "Options"]


class Classifier(Protocol):
    """What ``classification.classify`` does. A service with odd statuses may have its own."""

    def __call__(self, end: Answer | Trouble, *, method: str, keyed: bool) -> Decision: ...


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How a call is made. Times are in seconds."""

    #: The first one included.
    attempts: int = 3
    backoff: Backoff = field(default_factory=FullJitter)
    #: For one attempt, from waiting for a connection to the answer's last byte. Shorter than the
    #: breaker's lease.
    attempt_timeout: float = 5.0
    #: For the whole call, where the caller gives no deadline.
    deadline: float = 30.0
    #: What each hop keeps of its parent's time for itself.
    margin: float = 0.01
    #: Added to Retry-After as U(0, spread).
    spread: float = BASE
    #: Whether an unsafe request without a key gets one. None is made for safe methods.
    make_keys: bool = True
    #: Whether the server does the work of one key once. If not, a key allows no repetition.
    server_dedupes: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("a call has at least one attempt")
        if not (self.attempt_timeout >= 3 * self.margin > 0 and self.deadline > 0):
            raise ValueError("attempt_timeout is at least 3 margins, and both are above 0")
        if self.spread < 0:
            raise ValueError("spread is 0 or more")


@dataclass(frozen=True, slots=True)
class Gear:
    """What all calls of one operation of a dependency have in common."""

    dependency: str = ""
    operation: str = ""
    policy: CallPolicy = field(default_factory=CallPolicy)
    breaker: BreakerProtocol | None = None
    budget: BudgetProtocol | None = None
    hedging: Hedging | None = None
    observers: tuple[Observer, ...] = ()
    classify: Classifier = classify
    clock: Callable[[], float] = time.monotonic
    #: Seconds since 1970, for a ``Retry-After`` that is a date.
    wall: Callable[[], float] = time.time
    rng: random.Random | None = None


class Options(TypedDict, total=False):
    """What a caller may be given, by keyword."""

    policy: CallPolicy
    #: One breaker for each operation; this process's own unless given.
    breakers: BreakerRegistry[Any]
    #: Of the dependency; this process's own unless given.
    budget: BudgetProtocol
    #: Without one, no second copies are sent.
    hedging: HedgePolicy | None
    observers: Iterable[Observer]
    classify: Classifier
    #: Seconds, monotonic.
    clock: Callable[[], float]
    #: Seconds since 1970.
    wall: Callable[[], float]
    rng: random.Random | None


class Gears:
    """Hands out the gear of each operation of a dependency. Safe for threads."""

    def __init__(self, dependency: str, **options: Unpack[Options]) -> None:
        clock = options.get("clock", time.monotonic)
        policy = options.get("policy") or CallPolicy()
        self.hedging = options.get("hedging")
        self.breakers = options.get("breakers") or _breakers(clock, policy.attempt_timeout)
        self._common = Gear(
            dependency,
            policy=policy,
            budget=options.get("budget") or RetryBudget(clock=clock),
            observers=tuple(options.get("observers", ())),
            classify=options.get("classify", classify),
            clock=clock,
            wall=options.get("wall", time.time),
            rng=options.get("rng"),
        )
        self._gears: dict[str, Gear] = {}

    def get(self, operation: str) -> Gear:
        """The gear of an operation: the same one every time.

        Raises ``ValueError`` where a probe's lease would end before its attempt does: no probe
        could close that breaker.
        """
        gear = self._gears.get(operation)
        if gear is None:
            common = self._common
            hedging = Hedging(self.hedging, clock=common.clock) if self.hedging else None
            breaker = self.breakers.get(common.dependency, operation)
            lease = getattr(getattr(breaker, "policy", None), "lease", math.inf)
            if lease <= common.policy.attempt_timeout:
                raise ValueError(f"the breaker's lease ({lease} s) has to outlast an attempt")
            gear = replace(common, operation=operation, breaker=breaker, hedging=hedging)
            gear = self._gears.setdefault(operation, gear)  # another thread may have been first
        return gear


def _breakers(
    clock: Callable[[], float], attempt_timeout: float
) -> BreakerRegistry[CircuitBreaker]:
    policy = BreakerPolicy(lease=max(BreakerPolicy().lease, 2 * attempt_timeout))
    return BreakerRegistry(lambda *names: CircuitBreaker(policy, name=" ".join(names), clock=clock))
