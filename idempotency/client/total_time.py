"""Transports for httpx2 whose timeout bounds an attempt as a whole.

The ``timeout=`` of an HTTP client bounds each read, so a server that sends one byte a second never
runs into it. Here every wait on the network gets what is left of the attempt. ::

    client = httpx2.Client(timeout=5.0, transport=DeadlineTransport())

The ``read`` value of the timeout is the attempt's whole time in seconds: waiting for a connection,
connecting, TLS, sending, the last byte of the answer. The other values bound their own part
further. Only the look-up of the host name is outside in the synchronous one, as the system offers
no bound for it.

Answers are read whole, and refused above ``max_answer`` bytes. Errors are those of httpx2:
``ConnectError``, ``ConnectTimeout`` and ``PoolTimeout`` mean that not one byte was sent. HTTP/1.1;
nothing is retried in here, and no redirect followed.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypedDict, Unpack, cast

import httpcore2
import httpx2

from idempotency.client.transports import Cancellation

__all__ = ["AsyncDeadlineTransport", "CallCancelled", "DeadlineTransport"]

MAX_ANSWER = 10 * 1024 * 1024

#: The extension of a request that holds its ``Cancellation``.
CANCELLATION = "idempotency_cancellation"

# Most specific first: the first that matches is raised.
_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.WriteTimeout, httpx2.WriteTimeout),
    (httpcore2.TimeoutException, httpx2.ReadTimeout),
    (httpcore2.WriteError, httpx2.WriteError),
    (httpcore2.NetworkError, httpx2.ReadError),
    (httpcore2.LocalProtocolError, httpx2.LocalProtocolError),
    (httpcore2.ProtocolError, httpx2.RemoteProtocolError),
    (httpcore2.ProxyError, httpx2.ProxyError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
)
_THEIRS = tuple(theirs for theirs, _ in _ERRORS)
_ENCODING = b"content-encoding"
#: And what is too long.
_UNREADABLE: tuple[type[Exception], ...] = (*_THEIRS, httpx2.ReadError)
_LOST = "another copy of this request won"


class CallCancelled(httpx2.TransportError):
    """Another copy of this request won, and this one was taken back."""


class PoolOptions(TypedDict, total=False):
    """What both transports may be given, by keyword."""

    #: False accepts any certificate.
    verify: ssl.SSLContext | bool
    #: At most, 100.
    connections: int
    #: Connections that are kept when nobody uses them, 20.
    idle: int
    #: Seconds for which they are kept, 15: less than the server keeps them.
    idle_seconds: float
    #: The URL of a proxy.
    proxy: str | None
    #: Bytes, 10 MiB.
    max_answer: int


class SyncPoolOptions(PoolOptions, total=False):
    """What the synchronous transport may be given besides."""

    #: Turns a host and a port into the addresses to connect to, in their order; by default the
    #: system does. What it raises comes out of the request: it may refuse an address, and nothing
    #: looks the name up again between its word and the connection. Certificates are checked for
    #: the name. It should be bounded in time: the attempt's own bound does not reach into it.
    resolve: Callable[[str, int], list[str]]
    #: True: an answer is its status and headers. A body that is too long, too slow or broken is
    #: cut, where otherwise there would be no answer.
    headers_suffice: bool


class _Pool:
    """What both transports are made of."""

    def __init__(self, **options: Unpack[SyncPoolOptions]) -> None:
        proxy = options.get("proxy")
        self._max_answer = options.get("max_answer", MAX_ANSWER)
        self._headers_suffice = options.get("headers_suffice", False)
        self._options: dict[str, Any] = {
            "ssl_context": httpx2.create_ssl_context(verify=options.get("verify", True)),
            "proxy": None if proxy is None else httpcore2.Proxy(proxy),
            "max_connections": options.get("connections", 100),
            "max_keepalive_connections": options.get("idle", 20),
            "keepalive_expiry": options.get("idle_seconds", 15.0),
            "retries": 0,
        }

    def _take(self, body: bytearray, chunk: bytes) -> None:
        body += chunk
        if len(body) > self._max_answer:
            raise httpx2.ReadError(f"the answer is longer than {self._max_answer} bytes")


class DeadlineTransport(_Pool, httpx2.BaseTransport):
    """For ``httpx2.Client``. Safe for threads."""

    def __init__(self, **options: Unpack[SyncPoolOptions]) -> None:
        super().__init__(**options)
        resolve = options.get("resolve", _addresses)
        self._pool = httpcore2.ConnectionPool(network_backend=_Backend(resolve), **self._options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, and read its answer whole."""
        cancellation = request.extensions.get(CANCELLATION)
        with _running(request, cancellation) as attempt, _errors_of_httpx2(cancellation):
            response = self._pool.handle_request(_translated(request, request.read()))
            body = bytearray()
            try:
                self._read(response, body)
                attempt.let_go()
            finally:
                response.close()
        if cancellation is not None and cancellation.cancelled:
            raise CallCancelled(_LOST)  # its end may be ours and not the server's
        headers = response.headers
        if self._headers_suffice:
            # What is cut, or is not what it is called, cannot be decoded.
            headers = [(name, value) for name, value in headers if name.lower() != _ENCODING]
        return httpx2.Response(response.status, headers=headers, content=bytes(body))

    def _read(self, response: httpcore2.Response, body: bytearray) -> None:
        try:
            for chunk in response.iter_stream():
                self._take(body, chunk)
        except _UNREADABLE:
            if not self._headers_suffice:
                raise

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


class AsyncDeadlineTransport(_Pool, httpx2.AsyncBaseTransport):
    """For ``httpx2.AsyncClient``, in an event loop of asyncio."""

    def __init__(self, **options: Unpack[PoolOptions]) -> None:
        super().__init__(**options)
        self._pool = httpcore2.AsyncConnectionPool(network_backend=_AsyncBackend(), **self._options)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, and read its answer whole."""
        content = await request.aread()
        with _running(request, None), _errors_of_httpx2(None):
            response = await self._pool.handle_async_request(_translated(request, content))
            body = bytearray()
            try:
                chunks = cast(AsyncIterator[bytes], response.aiter_stream())
                async for chunk in chunks:
                    self._take(body, chunk)
            finally:
                await response.aclose()
        return httpx2.Response(response.status, headers=response.headers, content=bytes(body))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Attempt:
    """The attempt that this thread or task is at: when it must end, and what it waits for."""

    __slots__ = ("_cancellation", "_end", "_stream")

    def __init__(self, seconds: float, cancellation: Cancellation | None) -> None:
        self._end = time.monotonic() + seconds
        self._cancellation = cancellation
        self._stream: _Stream | None = None
        if cancellation is not None:
            cancellation.interrupt_with(self._interrupt)

    def left(self, limit: float | None, expired: type[Exception], stream: Any = None) -> float:
        """Seconds that the next wait may take, on that stream."""
        # In this order: whoever cancels either finds the stream or is seen here.
        self._stream = stream
        if self._cancellation is not None and self._cancellation.cancelled:
            raise httpcore2.NetworkError("cancelled")
        left = self._end - time.monotonic()
        if left <= 0:
            raise expired("the attempt's time is over")
        return left if limit is None else min(left, limit)

    def let_go(self) -> None:
        """No wait is left to interrupt: the connection goes back to the pool."""
        if self._cancellation is not None:
            self._cancellation.interrupt_with(None)
        self._stream = None

    def _interrupt(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.interrupt()


_attempt: ContextVar[_Attempt] = ContextVar("attempt")


@contextmanager
def _running(request: httpx2.Request, cancellation: Cancellation | None) -> Iterator[_Attempt]:
    seconds = request.extensions.get("timeout", {}).get("read")
    attempt = _Attempt(math.inf if seconds is None else seconds, cancellation)
    token = _attempt.set(attempt)
    try:
        yield attempt
    finally:
        _attempt.reset(token)


@contextmanager
def _errors_of_httpx2(cancellation: Cancellation | None) -> Iterator[None]:
    try:
        yield
    except _THEIRS as error:
        if cancellation is not None and cancellation.cancelled:
            raise CallCancelled(_LOST) from error
        ours = next(ours for theirs, ours in _ERRORS if isinstance(error, theirs))
        raise ours(str(error) or type(error).__name__) from error


def _translated(request: httpx2.Request, content: bytes) -> httpcore2.Request:
    url = request.url
    return httpcore2.Request(
        method=request.method,
        url=httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        ),
        headers=request.headers.raw,
        content=content,
        extensions={"timeout": request.extensions.get("timeout", {})},
    )


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, resolve: Callable[[str, int], list[str]]) -> None:
        self._resolve = resolve
        self._system = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        addresses = self._resolve(host, port)
        # One by one, each with its share of the time: the first may be one that never answers.
        for number, address in enumerate(addresses):
            left = _attempt.get().left(timeout, httpcore2.ConnectTimeout)
            share = _finite(left / (len(addresses) - number))
            try:
                stream = self._system.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _Stream(stream)
        raise failure


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(error) from error
    return [str(address[0]) for *_, address in found]


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = _attempt.get().left(timeout, httpcore2.ReadTimeout, self)
        return self._stream.read(max_bytes, _finite(left))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # After the end nothing is sent any more: a lease may be somebody else's by then.
        left = _attempt.get().left(timeout, httpcore2.WriteTimeout, self)
        self._stream.write(buffer, _finite(left))

    def close(self) -> None:
        self._stream.close()

    def interrupt(self) -> None:
        """End the wait of another thread on this stream. The stream is of no use any more."""
        found = self._stream.get_extra_info("socket")
        try:
            # Not SSLSocket.shutdown: that takes the TLS state from under the thread that reads.
            socket.socket.shutdown(found, socket.SHUT_RDWR)
        except OSError:
            return  # closed or broken already, so nobody waits for it

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            left = _attempt.get().left(timeout, httpcore2.ConnectTimeout, self)
        except Exception:
            self.close()  # as the system's stream does when the handshake fails
            raise
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _finite(left)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _AsyncBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._system = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        left = _attempt.get().left(timeout, httpcore2.ConnectTimeout)
        stream = await self._system.connect_tcp(
            host, port, _finite(left), local_address, socket_options
        )
        return _AsyncStream(stream)


class _AsyncStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = _attempt.get().left(timeout, httpcore2.ReadTimeout)
        return await self._stream.read(max_bytes, _finite(left))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = _attempt.get().left(timeout, httpcore2.WriteTimeout)
        await self._stream.write(buffer, _finite(left))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            left = _attempt.get().left(timeout, httpcore2.ConnectTimeout)
        except Exception:
            await self.aclose()
            raise
        stream = await self._stream.start_tls(ssl_context, server_hostname, _finite(left))
        return _AsyncStream(stream)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _finite(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds
