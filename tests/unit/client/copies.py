"""Transports whose copies take as long, and end, as a test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from idempotency.client.classification import Trouble
from idempotency.client.hedging import HedgePolicy
from idempotency.client.messages import Request
from idempotency.client.transports import Cancellation, NoAnswer
from tests.unit.client.acted import Broken, Reply

#: Knows its delay after one success.
EAGER = HedgePolicy(minimum=1, remembered=10)

End = Reply | Trouble


def come_to(end: End) -> Reply:
    """Return the answer, or raise what stands for none."""
    if isinstance(end, Trouble):
        raise NoAnswer(end, Broken(end.value))
    return end


@dataclass
class TimedCopies:
    """For tasks: copy n takes the n-th time and ends as the n-th end, or at its timeout."""

    copies: list[tuple[float, End]]
    requests: list[Request] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    running: int = 0

    async def send(self, request: Request, timeout: float) -> Reply:
        number = len(self.requests)
        self.requests.append(request)
        self.began.append(asyncio.get_running_loop().time())
        seconds, end = self.copies[number]
        self.running += 1
        try:
            await asyncio.sleep(min(seconds, timeout))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.running -= 1
        return come_to(end if seconds <= timeout else Trouble.TIMEOUT)

    async def aclose(self) -> None:
        assert self.running == 0


class Copy:
    """One copy in a thread of its own, which ends when the test lets it."""

    def __init__(self, *, interruptible: bool = True) -> None:
        self._interruptible = interruptible
        self.started = threading.Event()
        self.interrupted = threading.Event()
        self.over = threading.Event()
        self._go = threading.Event()
        self._end: End | BaseException = Trouble.UNKNOWN

    def finish(self, end: End | BaseException) -> None:
        """Let it end, and see it do so."""
        self._end = end
        self._go.set()
        assert self.over.wait(30)

    def act(self, cancellation: Cancellation | None) -> Reply:
        if cancellation is not None:
            cancellation.interrupt_with(self._interrupt)
        self.started.set()
        try:
            assert self._go.wait(30)
            if self.interrupted.is_set():
                raise NoAnswer(Trouble.CANCELLED, Broken("cancelled"))
            if isinstance(self._end, BaseException):
                raise self._end
            return come_to(self._end)
        finally:
            self.over.set()

    def _interrupt(self) -> None:
        if self._interruptible:
            self.interrupted.set()
            self._go.set()


class SteeredCopies:
    """For threads: each copy ends when the test says."""

    def __init__(self, copies: Iterable[Copy]) -> None:
        self._copies = list(copies)
        self._lock = threading.Lock()
        self.requests: list[Request] = []

    def send(
        self, request: Request, timeout: float, cancellation: Cancellation | None = None
    ) -> Reply:
        with self._lock:
            copy = self._copies[len(self.requests)]
            self.requests.append(request)
        return copy.act(cancellation)

    def close(self) -> None:
        assert all(copy.over.is_set() for copy in self._copies if copy.started.is_set())
