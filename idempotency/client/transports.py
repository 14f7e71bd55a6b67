"""What the caller asks of a library for HTTP: two methods.

``send`` makes one attempt. It returns an answer read to its end, or raises ``NoAnswer`` with a
``Trouble`` and the library's own exception; any other exception is taken for a defect and never
retried. It must end within ``timeout`` seconds, *everything included*: waiting for a connection,
connecting, TLS, writing, and the last byte of the answer. A timeout for each read is not enough, as
a server that sends one byte a second never runs into it.

``send`` must not retry by itself: three attempts of three would be nine. ``httpx2_transports.py``
has the bindings for httpx2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from idempotency.client.classification import Trouble
from idempotency.client.messages import Request, Response

__all__ = ["AsyncTransport", "Cancellation", "NoAnswer", "Transport"]

_Response = TypeVar("_Response", bound=Response, covariant=True)


class NoAnswer(Exception):
    """Raised by transports: the attempt ended without an answer.

    ``error`` is what the caller raises after the last attempt: the original exception.
    """

    def __init__(self, trouble: Trouble, error: Exception) -> None:
        super().__init__(trouble, error)
        self.trouble = trouble
        self.error = error


class Cancellation:
    """Lets one thread take back what another one sends. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Interrupt the attempt, if it runs, and have it not begin, if it does not yet."""
        with self._lock:
            self.cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    def interrupt_with(self, interrupt: Callable[[], None] | None) -> None:
        """Say how to interrupt the attempt; None when there is nothing to interrupt any more.

        When this returns from a call with None, no interruption is under way either: the
        connection may go back to its pool.
        """
        with self._lock:
            self._interrupt = interrupt
            if self.cancelled and interrupt is not None:
                interrupt()


class Transport(Protocol[_Response]):
    """Sends one attempt, from any number of threads."""

    def send(
        self, request: Request, timeout: float, cancellation: Cancellation | None = None
    ) -> _Response:
        """Send the request once. Returns or raises within ``timeout`` seconds.

        ``cancellation`` is given for copies in a race. A transport may ignore it: its loser then
        runs on in the background, at most until the timeout.
        """
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class AsyncTransport(Protocol[_Response]):
    """Sends one attempt, from any number of tasks of one event loop (asyncio)."""

    async def send(self, request: Request, timeout: float) -> _Response:
        """Send the request once. Ends within ``timeout`` seconds, and when it is cancelled."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
