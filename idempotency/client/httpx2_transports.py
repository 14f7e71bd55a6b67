"""httpx2 as a transport for callers. Needs ``httpx2`` (the extra ``client``).

Requests, responses and connections are httpx2's; ``httpx2.Client`` is not used. What it would add
is not wanted here: redirects that resend a POST, cookies that one call leaves for the next, proxies
out of the environment.
"""

from __future__ import annotations

import functools
import os
import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Unpack

import httpx2

from idempotency import __version__
from idempotency.client.classification import Trouble
from idempotency.client.messages import Request
from idempotency.client.total_time import (
    CANCELLATION,
    AsyncDeadlineTransport,
    CallCancelled,
    DeadlineTransport,
    PoolOptions,
    SyncPoolOptions,
)
from idempotency.client.transports import Cancellation, NoAnswer

__all__ = ["AsyncHttpx2Transport", "Httpx2Transport", "trouble_of"]

_DEFAULTS = {
    "accept": "*/*",
    # No compression: one thing less that can be broken in an answer, or blown up by one.
    "accept-encoding": "identity",
    "user-agent": f"django-idempotency/{__version__}",
}

# Most specific first.
_TROUBLES: tuple[tuple[type[Exception], Trouble], ...] = (
    (CallCancelled, Trouble.CANCELLED),
    (httpx2.PoolTimeout, Trouble.POOL),
    (httpx2.ConnectTimeout, Trouble.CONNECT),
    (httpx2.ConnectError, Trouble.CONNECT),
    (httpx2.ProxyError, Trouble.CONNECT),
    (httpx2.TimeoutException, Trouble.TIMEOUT),
    (httpx2.WriteError, Trouble.WRITE),
    (httpx2.NetworkError, Trouble.READ),
    (httpx2.RemoteProtocolError, Trouble.READ),
    (httpx2.DecodingError, Trouble.READ),
)
#: What says nothing about certificates: the connection broke, or there was nothing to read yet.
_NO_VERDICT = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class _Forks:
    """How often this process is a fork: two processes must never share a connection."""

    depth = 0


def _forked() -> None:
    _Forks.depth += 1


os.register_at_fork(after_in_child=_forked)


class Httpx2Transport:
    """Sends attempts and returns ``httpx2.Response``. Safe for threads, and to make before a
    fork."""

    def __init__(
        self, transport: httpx2.BaseTransport | None = None, **options: Unpack[SyncPoolOptions]
    ) -> None:
        """``options`` are those of ``DeadlineTransport``.

        ``transport``: another one in its place, such as ``httpx2.WSGITransport`` in tests. It must
        keep to the timeout as a whole by itself, so ``httpx2.HTTPTransport`` is refused.
        """
        if isinstance(transport, httpx2.HTTPTransport):
            raise ValueError(_UNBOUNDED.format("DeadlineTransport"))
        self._make: Callable[[], httpx2.BaseTransport] = (
            (lambda: DeadlineTransport(**options)) if transport is None else (lambda: transport)
        )
        self._transports = {_Forks.depth: self._make()}

    def send(
        self, request: Request, timeout: float, cancellation: Cancellation | None = None
    ) -> httpx2.Response:
        """Send the request once; see ``Transport``."""
        began = time.monotonic()
        message = _message(request, timeout)
        if cancellation is not None:
            message.extensions[CANCELLATION] = cancellation
        try:
            response = self._transport().handle_request(message)
            response.read()
        except httpx2.RequestError as error:
            raise _no_answer(error, message) from error
        return _completed(response, message, began)

    def close(self) -> None:
        """Close this process's connections; a later attempt opens new ones."""
        transport = self._transports.pop(_Forks.depth, None)
        if transport is not None:
            transport.close()

    def _transport(self) -> httpx2.BaseTransport:
        """The transport of this process.

        No lock: one that another thread holds during a fork would stay locked in the child. Two
        threads may each make a transport, but only one is kept, and the other has no connection.
        """
        transport = self._transports.get(_Forks.depth)
        if transport is None:
            transport = self._transports.setdefault(_Forks.depth, self._make())
        return transport


class AsyncHttpx2Transport:
    """Sends attempts and returns ``httpx2.Response``. For the tasks of one event loop of
    asyncio."""

    def __init__(
        self, transport: httpx2.AsyncBaseTransport | None = None, **options: Unpack[PoolOptions]
    ) -> None:
        """As for ``Httpx2Transport``."""
        if isinstance(transport, httpx2.AsyncHTTPTransport):
            raise ValueError(_UNBOUNDED.format("AsyncDeadlineTransport"))
        self._transport = transport or AsyncDeadlineTransport(**options)

    async def send(self, request: Request, timeout: float) -> httpx2.Response:
        """Send the request once; see ``AsyncTransport``."""
        began = time.monotonic()
        message = _message(request, timeout)
        try:
            response = await self._transport.handle_async_request(message)
            await response.aread()
        except httpx2.RequestError as error:
            raise _no_answer(error, message) from error
        return _completed(response, message, began)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


_UNBOUNDED = (
    "this transport's timeout bounds each read and not the attempt, and it may retry on its own; "
    "leave it out, or use {}"
)


def trouble_of(error: Exception) -> Trouble:
    """Sort an exception of httpx2 into the troubles that ``classify`` knows.

    What is not listed (a request that breaks the protocol, say) is ``UNKNOWN``.
    """
    trouble = next((trouble for kind, trouble in _TROUBLES if isinstance(error, kind)), None)
    if trouble in (Trouble.CONNECT, Trouble.READ, Trouble.WRITE):
        tls = _tls_error(error)
        if tls is not None and (trouble is Trouble.CONNECT or _is_about_certificates(tls)):
            return Trouble.TLS
    return trouble or Trouble.UNKNOWN


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error at the bottom of an exception. (The libraries between hand it on as a cause, a
    context, or an argument.)"""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ssl.SSLError):
            return None if isinstance(error, _NO_VERDICT) else error
        seen.append(error)
        inner = error.args[0] if error.args else None
        error = error.__cause__ or (
            inner if isinstance(inner, BaseException) else error.__context__
        )
    return None


def _is_about_certificates(error: ssl.SSLError) -> bool:
    """TLS 1.3 tells a client that its certificate was refused after the handshake, in place of an
    answer."""
    reason = error.reason or ""
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


#: Parsing a URL is a third of the cost of a request, and most calls go to a few of them.
_url = functools.lru_cache(maxsize=256)(httpx2.URL)


def _message(request: Request, timeout: float) -> httpx2.Request:
    return httpx2.Request(
        request.method,
        _url(request.url),
        headers={**_DEFAULTS, **request.headers},
        content=request.body,
        extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)},
    )


def _completed(response: httpx2.Response, message: httpx2.Request, began: float) -> httpx2.Response:
    """The response with what ``httpx2.Client`` would have put on it."""
    response.request = message
    response.elapsed = timedelta(seconds=time.monotonic() - began)
    return response


def _no_answer(error: httpx2.RequestError, message: httpx2.Request) -> NoAnswer:
    error.request = message
    return NoAnswer(trouble_of(error), error)
