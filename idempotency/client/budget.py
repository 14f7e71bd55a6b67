"""A budget for retries: what keeps a client from doubling the load of a server that is failing.

Over the last ``window`` seconds, in buckets of one second::

    retries + hedges ≤ max(floor, ratio · first attempts)        for a retry
    retries + hedges ≤ ratio · first attempts                    for a hedge

With ratio 0.1 a total outage is met with 1.1 times the usual load, where three attempts mean 3
times; through L layers that is 1.1ᴸ against 3ᴸ. The floor lets a client with little traffic retry
at all, and is per process here (``shared.py`` has the one for many processes). A hedge has no
floor: it is a luxury.

Jitter spreads retries out and does not make them fewer; only this does. Source: Finagle's
``RetryBudget``, gRPC A6, Google SRE "Handling Overload".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from idempotency.client.window import ForwardClock, SlidingWindow, exact

__all__ = ["BudgetPolicy", "BudgetProtocol", "RetryBudget", "Ticket"]

_FIRST, _SPENT = 0, 1


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """How much may be spent."""

    #: Retries and hedges for each first attempt, at least 0.
    ratio: float = 0.1
    #: Whole seconds.
    window: int = 60
    #: Retries that are granted in any window, whatever the traffic.
    floor: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1000 or self.floor < 0:
            raise ValueError("ratio is from 0 to 1000, floor is 0 or more")

    def grants(self, first_attempts: int, spent: int, *, hedge: bool) -> bool:
        """Whether one more may be spent."""
        if not hedge and spent < self.floor:
            return True
        ratio = exact(self.ratio)
        return (spent + 1) * ratio.denominator <= first_attempts * ratio.numerator


@dataclass(slots=True, eq=False)
class Ticket:
    """One retry or hedge that was granted. Give it back when it is not sent after all."""

    second: int
    shared: bool = False
    returned: bool = False


class BudgetProtocol(Protocol):
    """What the attempt loop asks of a budget. It is never asked about an attempt under way."""

    #: Whether a call may wait for a network: async code then calls it in a thread.
    blocks: ClassVar[bool]

    def credit(self) -> None:
        """Count a first attempt that passed the breaker. One that was rejected earns nothing."""
        ...

    def spend(self, *, hedge: bool = False) -> Ticket | None:
        """Ask for one retry, or one hedge. None: not now, and the last result stands."""
        ...

    def refund(self, ticket: Ticket) -> None:
        """Give back what was not sent. A second time does nothing."""
        ...


class RetryBudget:
    """The budget of one process. Safe for threads; nothing waits here."""

    blocks: ClassVar[bool] = False

    def __init__(
        self,
        policy: BudgetPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives seconds; a step back makes time stand still."""
        self.policy = policy or BudgetPolicy()
        self._clock = ForwardClock(clock)
        self._window = SlidingWindow(self.policy.window, kinds=2)
        self._lock = threading.Lock()

    def credit(self) -> None:
        """Count a first attempt that passed the breaker."""
        with self._lock:
            self._window.advance(self._clock())
            self._window.add(_FIRST)

    def spend(self, *, hedge: bool = False) -> Ticket | None:
        """Take one retry or hedge out of the budget, or None where there is none left."""
        with self._lock:
            second = self._window.advance(self._clock())
            first_attempts, spent = self._window.totals()
            if not self.policy.grants(first_attempts, spent, hedge=hedge):
                return None
            self._window.add(_SPENT)
            return Ticket(second)

    def refund(self, ticket: Ticket) -> None:
        """Give a ticket back. One older than the window has been forgotten and changes nothing."""
        with self._lock:
            if not ticket.returned:
                ticket.returned = True
                self._window.advance(self._clock())
                self._window.take_back(ticket.second, _SPENT)
