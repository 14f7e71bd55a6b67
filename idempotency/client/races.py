"""Two copies of one request in a race: in threads, or in tasks.

The second copy starts when the first has not ended after the hedge's delay and the budget has room.
The first success (or final answer) ends the race; else the last failure does. A copy that failed
never ends one that still runs.

The loser is cancelled and not waited for: it dies in the background, and what it still says is
heard by nobody. When the caller itself is cancelled, both copies are.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from idempotency.client.attempts import UNSENT, AttemptLoop, Ended, Send
from idempotency.client.classification import Trouble
from idempotency.client.hedging import wins
from idempotency.client.messages import AnyResponse, Request
from idempotency.client.transports import AsyncTransport, Cancellation, NoAnswer, Transport

Clock = Callable[[], float]

#: Of the threads that copies run in.
THREAD_NAME = "idempotency-copy"


def attempt(
    loop: AttemptLoop[AnyResponse],
    transport: Transport[AnyResponse],
    request: Request,
    timeout: float,
    cancellation: Cancellation | None = None,
) -> Ended[AnyResponse]:
    """Send one copy in this thread, and judge how it ended."""
    try:
        return loop.answered(transport.send(request, timeout, cancellation))
    except NoAnswer as none:
        return loop.failed(none.trouble, none.error)
    except Exception as error:
        return loop.failed(Trouble.UNKNOWN, error)


async def async_attempt(
    loop: AttemptLoop[AnyResponse],
    transport: AsyncTransport[AnyResponse],
    request: Request,
    timeout: float,
) -> Ended[AnyResponse]:
    """Send one copy in this task, and judge how it ended."""
    try:
        return loop.answered(await transport.send(request, timeout))
    except NoAnswer as none:
        return loop.failed(none.trouble, none.error)
    except Exception as error:
        return loop.failed(Trouble.UNKNOWN, error)


class _Copies:
    """What both kinds of race remember of their copies."""

    def __init__(self, loop: AttemptLoop[Any], clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._began = clock()
        self._running: dict[int, Any] = {}

    def _has_ended(self, number: int, end: Ended[Any]) -> bool:
        """Whether the race is over now that this copy is."""
        del self._running[number]
        if number == 2 and end.trouble in UNSENT:
            self._loop.copy_unsent()
        if not wins(end.decision):
            return not self._running
        if 1 in self._running:
            self._loop.outlast(self._clock() - self._began)
        return True


class ThreadRace(_Copies, Generic[AnyResponse]):
    """A race of threads. The caller's own thread waits, so that it can leave the loser behind."""

    def __init__(
        self, loop: AttemptLoop[AnyResponse], transport: Transport[AnyResponse], clock: Clock
    ) -> None:
        super().__init__(loop, clock)
        self._transport = transport
        self._ends: queue.SimpleQueue[tuple[int, Ended[AnyResponse] | BaseException]] = (
            queue.SimpleQueue()
        )

    def run(self, send: Send) -> Ended[AnyResponse]:
        """How the attempt ended."""
        try:
            self._start(1, send.request, send.timeout)
            try:
                number, end = self._next(send.hedge_after)
            except queue.Empty:
                self._hedge()
                number, end = self._next()
            while not self._has_ended(number, end):
                number, end = self._next()
            return end
        finally:
            for cancellation in self._running.values():
                cancellation.cancel()

    def _hedge(self) -> None:
        if not self._loop.pay_for_copy():
            return
        if not self._ends.empty():  # while it was paid for
            self._loop.copy_unsent()
            return
        self._start(2, *self._loop.copy())

    def _next(self, timeout: float | None = None) -> tuple[int, Ended[AnyResponse]]:
        number, end = self._ends.get(timeout=timeout)
        if isinstance(end, BaseException):
            raise end
        return number, end

    def _start(self, number: int, request: Request, timeout: float) -> None:
        self._running[number] = cancellation = Cancellation()
        context = contextvars.copy_context()
        arguments = (self._run, number, request, timeout, cancellation)
        thread = threading.Thread(target=context.run, args=arguments, name=THREAD_NAME, daemon=True)
        thread.start()

    def _run(
        self, number: int, request: Request, timeout: float, cancellation: Cancellation
    ) -> None:
        began = self._clock()
        try:
            end = attempt(self._loop, self._transport, request, timeout, cancellation)
            self._loop.learn(self._clock() - began, end.decision)
            self._ends.put((number, end))
        except BaseException as error:
            # The caller would wait for this copy forever.
            self._ends.put((number, error))


class TaskRace(_Copies, Generic[AnyResponse]):
    """A race of tasks in the caller's event loop."""

    def __init__(
        self,
        loop: AttemptLoop[AnyResponse],
        transport: AsyncTransport[AnyResponse],
        clock: Clock,
        *,
        pay: Callable[[], Awaitable[bool]],
        reap: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        """``pay`` asks the budget for a copy, ``reap`` keeps a cancelled task until it ends."""
        super().__init__(loop, clock)
        self._transport = transport
        self._pay = pay
        self._reap = reap
        self._ends: asyncio.Queue[tuple[int, asyncio.Task[Ended[AnyResponse]]]] = asyncio.Queue()

    async def run(self, send: Send) -> Ended[AnyResponse]:
        """How the attempt ended."""
        try:
            self._start(1, send.request, send.timeout)
            await asyncio.wait(self._running.values(), timeout=send.hedge_after)
            if self._ends.empty():
                await self._hedge()
            number, end = await self._next()
            while not self._has_ended(number, end):
                number, end = await self._next()
            return end
        finally:
            for task in self._running.values():
                task.cancel()
                self._reap(task)

    async def _hedge(self) -> None:
        if not await self._pay():
            return
        if not self._ends.empty():  # while it was paid for
            self._loop.copy_unsent()
            return
        self._start(2, *self._loop.copy())

    async def _next(self) -> tuple[int, Ended[AnyResponse]]:
        number, task = await self._ends.get()
        return number, task.result()

    def _start(self, number: int, request: Request, timeout: float) -> None:
        task = asyncio.ensure_future(self._run(request, timeout))
        self._running[number] = task
        task.add_done_callback(lambda ended: self._ends.put_nowait((number, ended)))

    async def _run(self, request: Request, timeout: float) -> Ended[AnyResponse]:
        began = self._clock()
        end = await async_attempt(self._loop, self._transport, request, timeout)
        self._loop.learn(self._clock() - began, end.decision)
        return end
