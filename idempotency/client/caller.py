"""Calls that are retried: the loop of ``attempts.py`` over a transport, with threads or tasks.

::

    caller = Caller(Httpx2Transport(), "gateway")
    response = caller.call(Request("POST", url, headers, body), operation="charge", key=key)

One caller for each dependency, shared by all threads (or by the tasks of one event loop): its
budget is the dependency's, and each operation has a breaker and a hedging of its own.

The answer to the last attempt is returned, whatever its status. Where there was none, the
transport's own exception is raised, with ``attempts`` and ``idempotency_key`` on it. Cancellation
(``KeyboardInterrupt``, ``CancelledError``) passes through at once and counts against nobody.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, Unpack

from idempotency.client.attempts import AttemptLoop, Done, Ended, Send, Sleep
from idempotency.client.deadline import Deadline
from idempotency.client.history import CallResult
from idempotency.client.messages import AnyResponse, Request
from idempotency.client.policy import CallPolicy, Gears, Options
from idempotency.client.races import TaskRace, ThreadRace, async_attempt, attempt
from idempotency.client.transports import AsyncTransport, Transport

__all__ = ["AsyncCaller", "Caller", "InsideTransaction"]


class InsideTransaction(RuntimeError):
    """A call with retries inside ``transaction.atomic()``: it would hold locks, and a connection,
    through every wait. Nothing was sent."""


class Waiting:
    """Whether waits take time. ``testing.no_waiting`` turns that off."""

    skipped = False


def _sleep(seconds: float) -> None:
    if not Waiting.skipped:
        time.sleep(seconds)


async def _async_sleep(seconds: float) -> None:
    await asyncio.sleep(0 if Waiting.skipped else seconds)


class _Calls:
    """What both callers are made of."""

    def __init__(self, dependency: str, **options: Unpack[Options]) -> None:
        #: The name of the other side in breakers, budgets, logs and metrics.
        self.dependency = dependency
        self.gears = Gears(dependency, **options)
        self.policy = options.get("policy") or CallPolicy()
        self._clock = options.get("clock", time.monotonic)

    def _open(
        self,
        request: Request,
        operation: str | None,
        key: str | None,
        deadline: Deadline | float | None,
    ) -> AttemptLoop[Any]:
        if isinstance(deadline, int | float):
            deadline = Deadline.after(deadline, clock=self._clock)
        gear = self.gears.get(request.method.upper() if operation is None else operation)
        return AttemptLoop(gear, request, key=key, deadline=deadline)


class Caller(_Calls, Generic[AnyResponse]):
    """Makes calls in the thread that asks. Safe for threads, and for forks if its transport is."""

    def __init__(
        self,
        transport: Transport[AnyResponse],
        dependency: str,
        *,
        sleep: Callable[[float], None] = _sleep,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dependency, **options)
        self.transport = transport
        self._sleep = sleep

    def call(
        self,
        request: Request,
        *,
        operation: str | None = None,
        key: str | None = None,
        deadline: Deadline | float | None = None,
    ) -> AnyResponse:
        """Send the request, again where that can help, and return the last answer.

        ``operation`` names what is done, out of a small set of names: ``charge``. The method
        unless given. ``key``: the idempotency key of the intent; one is made for an unsafe method
        without (``CallPolicy.make_keys``). ``deadline``: seconds, or the incoming request's.

        Raises the transport's own exception where no answer came, ``BreakerOpen`` and
        ``DeadlineExceeded`` where nothing was sent, ``InsideTransaction``, and ``KeyInvalid``.
        """
        return self.perform(request, operation=operation, key=key, deadline=deadline).unwrap()

    def perform(
        self,
        request: Request,
        *,
        operation: str | None = None,
        key: str | None = None,
        deadline: Deadline | float | None = None,
    ) -> CallResult[AnyResponse]:
        """Like ``call``, and return the error with the history instead of raising it."""
        if self.policy.attempts > 1:
            refuse_inside_transaction()
        loop: AttemptLoop[AnyResponse] = self._open(request, operation, key, deadline)
        try:
            step: Send | Sleep | Done[AnyResponse] = loop.begin()
            while not isinstance(step, Done):
                if isinstance(step, Sleep):
                    self._sleep(step.seconds)
                    step = loop.slept()
                else:
                    step = loop.ended(self._send(loop, step))
        except BaseException:
            loop.cancel()
            raise
        return step.result

    def _send(self, loop: AttemptLoop[AnyResponse], send: Send) -> Ended[AnyResponse]:
        if send.hedge_after is not None:
            return ThreadRace(loop, self.transport, self._clock).run(send)
        began = self._clock()
        end = attempt(loop, self.transport, send.request, send.timeout)
        loop.learn(self._clock() - began, end.decision)
        return end

    def close(self) -> None:
        """Close the transport."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class AsyncCaller(_Calls, Generic[AnyResponse]):
    """Makes calls in an event loop of asyncio. For the tasks of one loop."""

    def __init__(
        self,
        transport: AsyncTransport[AnyResponse],
        dependency: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = _async_sleep,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dependency, **options)
        self.transport = transport
        self._sleep = sleep
        self._background: set[asyncio.Future[Any]] = set()

    async def call(
        self,
        request: Request,
        *,
        operation: str | None = None,
        key: str | None = None,
        deadline: Deadline | float | None = None,
    ) -> AnyResponse:
        """As ``Caller.call``."""
        result = await self.perform(request, operation=operation, key=key, deadline=deadline)
        return result.unwrap()

    async def perform(
        self,
        request: Request,
        *,
        operation: str | None = None,
        key: str | None = None,
        deadline: Deadline | float | None = None,
    ) -> CallResult[AnyResponse]:
        """As ``Caller.perform``."""
        loop: AttemptLoop[AnyResponse] = self._open(request, operation, key, deadline)
        steps = _Steps(loop, self._keep)
        try:
            step: Send | Sleep | Done[AnyResponse] = await steps.take(loop.begin)
            while not isinstance(step, Done):
                if isinstance(step, Sleep):
                    await self._sleep(step.seconds)
                    step = await steps.take(loop.slept)
                else:
                    step = await steps.take(loop.ended, await self._send(loop, step, steps))
        except BaseException:
            steps.withdraw()
            raise
        return step.result

    async def _send(
        self, loop: AttemptLoop[AnyResponse], send: Send, steps: _Steps
    ) -> Ended[AnyResponse]:
        if send.hedge_after is not None:
            race = TaskRace(
                loop,
                self.transport,
                self._clock,
                pay=lambda: steps.take(loop.pay_for_copy),
                reap=self._keep,
            )
            return await race.run(send)
        began = self._clock()
        end = await async_attempt(loop, self.transport, send.request, send.timeout)
        loop.learn(self._clock() - began, end.decision)
        return end

    def _keep(self, running: asyncio.Future[Any]) -> None:
        """Hold on to what ends in the background, and take note of its exception."""
        self._background.add(running)
        running.add_done_callback(self._forget)

    def _forget(self, ended: asyncio.Future[Any]) -> None:
        self._background.discard(ended)
        if not ended.cancelled():
            ended.exception()

    async def aclose(self) -> None:
        """Wait for the losers of races to end, then close the transport."""
        while self._background:
            await asyncio.wait(self._background)
        await self.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()


class _Steps:
    """Takes the steps of one loop: here, or in a thread where they may wait for a network."""

    def __init__(self, loop: AttemptLoop[Any], keep: Callable[[asyncio.Future[Any]], None]) -> None:
        self._loop = loop
        self._keep = keep
        self._running: asyncio.Future[Any] | None = None

    async def take(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Take one step. Cancelled, it leaves the thread to end by itself."""
        if not self._loop.blocks:
            return step(*arguments)
        self._running = asyncio.ensure_future(asyncio.to_thread(step, *arguments))
        self._keep(self._running)
        result = await asyncio.shield(self._running)
        self._running = None
        return result

    def withdraw(self) -> None:
        """Cancel the loop, after the step that may be under way."""
        if self._loop.blocks:
            self._keep(asyncio.ensure_future(self._withdraw()))
        else:
            self._loop.cancel()

    async def _withdraw(self) -> None:
        sent = True
        if self._running is not None:
            await asyncio.wait([self._running])
            failed = self._running.cancelled() or self._running.exception() is not None
            sent = failed or not isinstance(self._running.result(), Send)
        await asyncio.to_thread(self._loop.cancel, sent=sent)


def refuse_inside_transaction() -> None:
    """Raise ``InsideTransaction`` where Django is loaded and a transaction is open.

    A test case's own transaction does not count, as for ``atomic(durable=True)``. Nothing is
    imported: without Django there is no transaction of Django's. (Tasks need no such check: Django
    keeps its transactions out of event loops.)
    """
    database = sys.modules.get("django.db")
    if database is None:
        return
    for connection in database.connections.all(initialized_only=True):
        blocks = connection.atomic_blocks
        if blocks and not getattr(blocks[-1], "_from_testcase", False):
            raise InsideTransaction(
                "This call may wait and retry, and a transaction is open: its locks would be held "
                "all along. Make the call outside transaction.atomic(), or with attempts=1."
            )
