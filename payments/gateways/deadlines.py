"""A transport for httpx2 whose timeout bounds the attempt as a whole.

The ``timeout=`` of an HTTP client bounds each read, so a peer that sends one byte a second never
runs into it. A lease is only worth something when the call it covers ends in a known time; here
each wait on the network gets what is left of the attempt.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore2
import httpx2

MAX_ANSWER = 1024 * 1024

# Most specific first: the first that matches is raised.
_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.TimeoutException, httpx2.ReadTimeout),
    (httpcore2.NetworkError, httpx2.ReadError),
    (httpcore2.ProtocolError, httpx2.RemoteProtocolError),
)


class DeadlineTransport(httpx2.BaseTransport):
    """Pooled HTTP/1.1; the ``read`` value of the timeout is the attempt's whole time, in seconds.

    Everything counts: waiting for a connection, connecting, TLS, sending, the last byte of the
    answer. Only the look-up of the host name is outside, as the system offers no bound for it.
    The answer is read whole, and refused above ``MAX_ANSWER`` bytes. Errors are those of httpx2:
    ``ConnectError``, ``ConnectTimeout`` and ``PoolTimeout`` mean that not one byte was sent.
    """

    def __init__(self, *, connections: int, idle: int, idle_seconds: float) -> None:
        self._clock = _AttemptClock()
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=connections,
            max_keepalive_connections=idle,
            keepalive_expiry=idle_seconds,
            network_backend=_Backend(self._clock),
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        timeout = request.extensions["timeout"]
        with self._clock.running(timeout["read"]), _errors_of_httpx2():
            response = self._pool.handle_request(
                httpcore2.Request(
                    method=request.method,
                    url=str(request.url),
                    headers=request.headers.raw,
                    content=request.read(),
                    extensions={"timeout": timeout},
                )
            )
            try:
                body = _read(response)
            finally:
                response.close()
        return httpx2.Response(response.status, headers=response.headers, content=body)

    def close(self) -> None:
        self._pool.close()


def _read(response: httpcore2.Response) -> bytes:
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise httpx2.ReadError(f"the answer is longer than {MAX_ANSWER} bytes")
    return bytes(body)


@contextmanager
def _errors_of_httpx2() -> Iterator[None]:
    try:
        yield
    except tuple(theirs for theirs, _ in _ERRORS) as error:
        ours = next(ours for theirs, ours in _ERRORS if isinstance(error, theirs))
        raise ours(str(error) or type(error).__name__) from error


class _AttemptClock(threading.local):
    """When the attempt that runs in this thread must end (monotonic)."""

    end: float = 0.0

    @contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        self.end = time.monotonic() + seconds
        yield

    def left(self, expired: type[Exception]) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise expired("the attempt's time is over")
        return left


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, clock: _AttemptClock) -> None:
        self._clock = clock
        self._system = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        failure = httpcore2.ConnectError(f"{host} has no address")
        # One by one: the system's own loop would give every address the full time.
        for address in _addresses(host, port):
            left = self._clock.left(httpcore2.ConnectTimeout)
            try:
                stream = self._system.connect_tcp(
                    address, port, left, local_address, socket_options
                )
            except httpcore2.ConnectError as error:
                failure = error
            else:
                return _Stream(stream, self._clock)
        raise failure


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return [str(address[0]) for *_, address in found]


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, clock: _AttemptClock) -> None:
        self._stream = stream
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._clock.left(httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # After the end nothing is sent any more: the lease may be somebody else's by then.
        self._stream.write(buffer, self._clock.left(httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        left = self._clock.left(httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
