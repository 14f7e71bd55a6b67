"""For tests of code that calls others: no waits, and answers by script. Needs ``httpx2``.

::

    transport = ScriptedTransport(503, Trouble.TIMEOUT, 201)
    client = SafeClient("https://api.example.com", transport=transport)
    with no_waiting():
        assert client.post("/v1/charges", json={}).status_code == 201
    assert len(transport.requests) == 3
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from idempotency.client.caller import Waiting
from idempotency.client.classification import Trouble
from idempotency.client.messages import Request
from idempotency.client.transports import Cancellation, NoAnswer

__all__ = ["AsyncScriptedTransport", "ScriptedTransport", "no_waiting"]

#: An answer (a number is the status of one without a body), or how there is none.
End = int | httpx2.Response | Trouble | Exception

_ERRORS: dict[Trouble, type[httpx2.RequestError]] = {
    Trouble.CONNECT: httpx2.ConnectError,
    Trouble.POOL: httpx2.PoolTimeout,
    Trouble.TLS: httpx2.ConnectError,
    Trouble.WRITE: httpx2.WriteError,
    Trouble.READ: httpx2.ReadError,
    Trouble.TIMEOUT: httpx2.ReadTimeout,
}


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let the waits between attempts take no time, in every thread of this process.

    What is decided stays the same: a wait that the deadline has no room for still ends the call.
    """
    before, Waiting.skipped = Waiting.skipped, True
    try:
        yield
    finally:
        Waiting.skipped = before


class _Script:
    def __init__(self, *ends: End) -> None:
        self._ends = list(ends)
        #: What was sent, headers of the attempt included.
        self.requests: list[Request] = []
        self.closed = False

    @property
    def finished(self) -> bool:
        """Whether every end of the script was used."""
        return len(self.requests) >= len(self._ends)

    def _end(self, request: Request) -> httpx2.Response:
        self.requests.append(request)
        if len(self.requests) > len(self._ends):
            raise AssertionError(f"the script has no end for request {len(self.requests)}")
        end = self._ends[len(self.requests) - 1]
        message = httpx2.Request(request.method, request.url, headers=request.headers)
        if isinstance(end, Trouble):
            error = _ERRORS.get(end, httpx2.TransportError)(end.value, request=message)
            raise NoAnswer(end, error)
        if isinstance(end, Exception):
            raise end
        response = httpx2.Response(end) if isinstance(end, int) else end
        response.request = message
        return response


class ScriptedTransport(_Script):
    """Ends attempt n with the n-th end of the script. An exception is raised as it is."""

    def send(
        self, request: Request, timeout: float, cancellation: Cancellation | None = None
    ) -> httpx2.Response:
        """Act the next end."""
        return self._end(request)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class AsyncScriptedTransport(_Script):
    """The same for ``AsyncCaller`` and ``AsyncSafeClient``."""

    async def send(self, request: Request, timeout: float) -> httpx2.Response:
        """Act the next end."""
        return self._end(request)

    async def aclose(self) -> None:
        """Remember that it was closed."""
        self.closed = True
