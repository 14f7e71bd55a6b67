"""A circuit breaker: stop asking a dependency that fails, and find out carefully when it is back.

::

              failures ≥ 50 %, or slow calls ≥ 80 %,
              of at least 20 calls in 10 s
    CLOSED ──────────────────────────────────────────▶ OPEN ◀──────────┐
       ▲                                                │ 5 s · 2ᵏ     │ a probe fails or is slow:
       │ three probes succeed                           ▼              │ k + 1
       └─────────────────────────────────────────── HALF_OPEN ─────────┘
                                                    one probe at a time

- The window is one of time, so a total outage is noticed after θ · W = 5 s whatever the traffic.
- An admission carries the *generation* of the breaker, which every change of state increments: what
  was sent before it opened cannot close it, nor open it anew.
- A probe is a *lease*: when its holder dies, the permit is free again after 10 s.
- Half-open counts its own probes: ``minimum_calls`` above ``permits`` does not hold it there.
- 4xx answers and the caller's own cancellation are neutral; our own timeout is a failure.
- No lock is held during a call: ``admit`` before it, ``settle`` after it.

Source: Nygard, "Release It!"; the rules of resilience4j, with leases and generations added.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar

from idempotency.client.window import ForwardClock, SlidingWindow, exact
from idempotency.core.errors import CallNotSent

__all__ = [
    "Admission",
    "BreakerOpen",
    "BreakerPolicy",
    "BreakerProtocol",
    "BreakerRegistry",
    "CircuitBreaker",
    "Outcome",
    "State",
]

logger = logging.getLogger("idempotency.client")

_CALLS, _FAILED, _SLOW = 0, 1, 2
#: Beyond this many doublings every period is at its cap.
_MOST_DOUBLINGS = 64
#: Seconds to tell a caller who comes while a probe is under way: it may end at any moment.
SOON = 1.0


class State(Enum):
    """What the breaker does with the next call."""

    #: Lets it through.
    CLOSED = "closed"
    #: Refuses it.
    OPEN = "open"
    #: Lets it through if it is one of the few probes.
    HALF_OPEN = "half_open"


class Outcome(Enum):
    """What a call says about the health of the dependency."""

    SUCCESS = "success"
    FAILURE = "failure"
    #: Nothing: the caller erred (4xx), gave up, or nothing was sent.
    NEUTRAL = "neutral"


class BreakerOpen(CallNotSent):
    """The dependency fails, so nothing was sent. ``retry_after`` (seconds) says when to ask."""

    default_detail = "This service fails at the moment. Nothing was sent."


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When to open, for how long, and how to probe. Times are in seconds."""

    window: int = 10
    failure_ratio: float = 0.5
    minimum_calls: int = 20
    #: A call that takes this long is slow, also one that succeeds.
    slow_call: float = 5.0
    slow_ratio: float = 0.8
    #: The k-th opening in a row, k = 0 for the first, lasts min(open_cap, open_for · 2ᵏ) · (1 ± U).
    open_for: float = 5.0
    open_cap: float = 60.0
    open_jitter: float = 0.2
    #: Probes that must succeed.
    permits: int = 3
    #: Probes at any moment.
    concurrent_probes: int = 1
    #: A probe's permit is taken back after this time. Longer than the timeout of an attempt.
    lease: float = 10.0

    def __post_init__(self) -> None:
        if not (0 < self.failure_ratio <= 1 and 0 < self.slow_ratio <= 1):
            raise ValueError("ratios are above 0 and at most 1")
        if min(self.minimum_calls, self.permits, self.concurrent_probes) < 1:
            raise ValueError("minimum_calls, permits and concurrent_probes are at least 1")
        if not (0 < self.open_for <= self.open_cap <= 3600 and 0 <= self.open_jitter < 1):
            raise ValueError("0 < open_for <= open_cap <= 3600, and 0 <= open_jitter < 1")
        if not (0 < self.lease <= 3600 and self.slow_call > 0):
            raise ValueError("0 < lease <= 3600, and slow_call is above 0")

    def trips(self, calls: int, failed: int, slow: int) -> bool:
        """Whether these counts of one window open the breaker."""
        if calls < self.minimum_calls:
            return False
        failing, dragging = exact(self.failure_ratio), exact(self.slow_ratio)
        return (
            failed * failing.denominator >= calls * failing.numerator
            or slow * dragging.denominator >= calls * dragging.numerator
        )

    def period(self, k: int, draw: float) -> float:
        """Seconds for which the k-th opening in a row lasts; ``draw`` is from U(0, 1).

        The cap comes first, then the draw: the longest period is ``open_cap · (1 + open_jitter)``.
        """
        nominal = min(self.open_cap, self.open_for * 2.0 ** min(k, _MOST_DOUBLINGS))
        return nominal * (1 + self.open_jitter * (2 * draw - 1))


@dataclass(slots=True, eq=False)
class Admission:
    """The permission for one call, to be settled once. What it is worth is in ``generation``."""

    generation: int
    started: float
    #: Names the lease of a probe; 0 outside HALF_OPEN.
    probe: int = 0
    shared: bool = False
    settled: bool = False


class BreakerProtocol(Protocol):
    """What the attempt loop asks of a breaker, once before and once after every attempt."""

    #: Whether a call may wait for a network: async code then calls it in a thread.
    blocks: ClassVar[bool]

    def admit(self) -> Admission:
        """Let one call through, or raise ``BreakerOpen`` at once."""
        ...

    def settle(self, admission: Admission, outcome: Outcome) -> None:
        """Say how the call ended; NEUTRAL for one that was not sent. A second time is ignored."""
        ...


class CircuitBreaker:
    """The breaker of one process for one operation of one dependency. Safe for threads."""

    blocks: ClassVar[bool] = False

    def __init__(
        self,
        policy: BreakerPolicy | None = None,
        *,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        on_change: Callable[[State, State], None] | None = None,
    ) -> None:
        """``clock`` gives seconds, ``rng`` the jitter of the open period.

        ``on_change(old, new)`` is told of every change of state, outside the lock and in the thread
        that caused it.
        """
        self.policy = policy or BreakerPolicy()
        self.name = name
        self._clock = ForwardClock(clock)
        self._rng = rng or random.SystemRandom()
        self._on_change = on_change
        self._lock = threading.Lock()
        self._window = SlidingWindow(self.policy.window, kinds=3)
        self._state = State.CLOSED
        self._generation = 0
        #: How often it opened since it was last closed.
        self._openings = 0
        self._open_until = 0.0
        self._probed_well = 0
        self._probes = 0
        #: Probe → when its lease ends.
        self._leases: dict[int, float] = {}
        self._changes: list[tuple[State, State]] = []

    @property
    def state(self) -> State:
        """The state as of the last call: OPEN turns to HALF_OPEN when the next one asks."""
        return self._state

    def admit(self) -> Admission:
        """Let one call through. Raises ``BreakerOpen``, and never waits."""
        with self._lock:
            now = self._clock()
            if self._state is State.OPEN and now >= self._open_until:
                self._begin_probing()
            if self._state is State.OPEN:
                admission, wait = None, self._open_until - now
            else:
                admission, wait = self._let_in(now), SOON
        self._tell()
        if admission is None:
            raise BreakerOpen(retry_after=wait)
        return admission

    def settle(self, admission: Admission, outcome: Outcome) -> None:
        """Say how an admitted call ended. A result of an earlier generation is ignored."""
        with self._lock:
            if admission.settled:
                return
            admission.settled = True
            now = self._clock()
            if admission.generation != self._generation:
                return
            slow = now - admission.started >= self.policy.slow_call
            if self._state is State.HALF_OPEN:
                self._judge_probe(admission, outcome, slow, now)
            elif outcome is not Outcome.NEUTRAL:
                self._count(outcome, slow, now)
        self._tell()

    def _let_in(self, now: float) -> Admission | None:
        if self._state is State.CLOSED:
            return Admission(self._generation, now)
        self._leases = {probe: end for probe, end in self._leases.items() if end > now}
        needed = self.policy.permits - self._probed_well
        if len(self._leases) >= min(self.policy.concurrent_probes, needed):
            return None
        self._probes += 1
        self._leases[self._probes] = now + self.policy.lease
        return Admission(self._generation, now, self._probes)

    def _count(self, outcome: Outcome, slow: bool, now: float) -> None:
        self._window.advance(now)
        self._window.add(_CALLS)
        if outcome is Outcome.FAILURE:
            self._window.add(_FAILED)
        if slow:
            self._window.add(_SLOW)
        calls, failed, dragged = self._window.totals()
        if self.policy.trips(calls, failed, dragged):
            self._open(now)

    def _judge_probe(self, admission: Admission, outcome: Outcome, slow: bool, now: float) -> None:
        # A lease that has ended was somebody else's to take: its result is not ours to use.
        if self._leases.pop(admission.probe, now) <= now or outcome is Outcome.NEUTRAL:
            return
        if slow or outcome is Outcome.FAILURE:
            self._open(now)
            return
        self._probed_well += 1
        if self._probed_well >= self.policy.permits:
            self._openings = 0
            self._change(State.CLOSED)

    def _open(self, now: float) -> None:
        self._open_until = now + self.policy.period(self._openings, self._rng.random())
        self._openings += 1
        self._change(State.OPEN)

    def _begin_probing(self) -> None:
        self._probed_well = 0
        self._change(State.HALF_OPEN)

    def _change(self, new: State) -> None:
        self._changes.append((self._state, new))
        self._state = new
        self._generation += 1
        self._window.clear()
        self._leases.clear()

    def _tell(self) -> None:
        """Log and report the changes, without the lock: a listener may take its time."""
        while self._changes:
            with self._lock:
                if not self._changes:
                    return
                old, new = self._changes.pop(0)
            report_change(self.name, old, new, self._on_change)


def report_change(
    name: str, old: State, new: State, listener: Callable[[State, State], None] | None
) -> None:
    """Log a change of state and tell the listener, whose failure is not the call's."""
    level = logging.INFO if new is State.CLOSED else logging.WARNING
    logger.log(level, "breaker %s: %s, was %s", name or "(unnamed)", new.value, old.value)
    tell_listener(name, old, new, listener)


def tell_listener(
    name: str, old: State, new: State, listener: Callable[[State, State], None] | None
) -> None:
    """Tell a listener, whose failure is not the call's."""
    if listener is None:
        return
    try:
        listener(old, new)
    except Exception:
        logger.exception("a listener of breaker %s failed", name)


AnyBreaker = TypeVar("AnyBreaker", bound=BreakerProtocol)


class BreakerRegistry(Generic[AnyBreaker]):
    """One breaker for each operation of each dependency.

    One for a whole host would let a failing report stop its payments; one for everything would let
    one host stop all others. Names come from code, not from requests: nothing is ever removed.
    """

    def __init__(self, make: Callable[[str, str], AnyBreaker]) -> None:
        """``make(dependency, operation)`` makes a breaker on first use, under a lock."""
        self._make = make
        self._breakers: dict[tuple[str, str], AnyBreaker] = {}
        self._lock = threading.Lock()

    def get(self, dependency: str, operation: str) -> AnyBreaker:
        """The breaker of an operation: the same one every time."""
        key = (dependency, operation)
        with self._lock:
            if key not in self._breakers:
                self._breakers[key] = self._make(dependency, operation)
            return self._breakers[key]
