"""A proxy that breaks HTTP on the way: over real sockets, request by request.

::

    def test_...(start_proxy):
        proxy = start_proxy("http://127.0.0.1:8000")
        proxy.plan(Fault.LOSE, Fault.PASS)      # for the next two requests; then all pass
        proxy.choose = lambda head: ...         # or decide on every request

Load it with ``pytest_plugins = ["tests.plugins.fault_proxy"]`` in the top ``conftest.py``; without
pytest ``with FaultProxy(url) as proxy:`` does the same.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import h11
import pytest

#: Seconds for the server behind the proxy to answer.
PATIENCE = 60.0


class Fault(enum.Enum):
    """What becomes of one request."""

    PASS = "pass"
    #: The connection is reset before the server sees the request.
    RESET = "reset"
    #: The server does the work, and its answer is lost.
    LOSE = "lose"
    #: The connection is reset in the middle of the answer.
    CUT = "cut"
    #: The server does the work, and its answer is held back for as long as the client waits.
    STALL = "stall"
    #: The answer comes one byte a second (``drip_seconds``).
    DRIP = "drip"


class FaultProxy:
    """Stands before the server at ``upstream``. ``url`` is its own."""

    def __init__(self, upstream: str, *, drip_seconds: float = 1.0) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._drip_seconds = drip_seconds
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._planned: deque[Fault] = deque()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        #: Given its head (the request line first), what becomes of a request without a plan.
        self.choose: Callable[[bytes], Fault] = lambda head: Fault.PASS
        #: How many requests met each fault.
        self.counts: Counter[Fault] = Counter()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def requests(self) -> int:
        """How many requests came."""
        return self.counts.total()

    @property
    def connections(self) -> int:
        """How many connections of clients are open."""
        return len(self._open)

    def plan(self, *faults: Fault) -> None:
        """Say what becomes of the next requests, in the order in which they come."""
        with self._lock:
            self._planned.extend(faults)

    def __enter__(self) -> FaultProxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for client in self._open:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                self._open.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        # A client that goes away, or a server that is not there, ends the connection only.
        try:
            with contextlib.suppress(OSError, h11.RemoteProtocolError):
                while (request := Message.read(client, h11.SERVER)) is not None:
                    if not self._meet(client, request):
                        return
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def _meet(self, client: socket.socket, request: Message) -> bool:
        """Let the request meet its fault; whether the connection goes on."""
        fault = self._next(request.head)
        if fault is Fault.RESET:
            _reset(client)
            return False
        answer = self.ask(request)
        if fault is Fault.PASS:
            client.sendall(answer.raw)
            return answer.keeps_alive
        if fault is Fault.CUT:
            client.sendall(answer.raw[: -max(1, len(answer.body) // 2)])
            _reset(client)
        elif fault is Fault.STALL:
            self._hold(client)
        elif fault is Fault.DRIP:
            self._drip(client, answer.raw)
        return False

    def _next(self, head: bytes) -> Fault:
        with self._lock:
            fault = self._planned.popleft() if self._planned else self.choose(head)
            self.counts[fault] += 1
        return fault

    def ask(self, request: Message) -> Message:
        """The server's answer. A subclass may have its own say."""
        with socket.create_connection(self._upstream, PATIENCE) as server:
            server.sendall(request.raw)
            answer = Message.read(server, h11.CLIENT, request)
        if answer is None:
            raise ConnectionError("the server closed the connection")
        return answer

    def _hold(self, client: socket.socket) -> None:
        client.settimeout(None)
        while client.recv(65536):  # until the client gives up, or the proxy is closed
            pass

    def _drip(self, client: socket.socket, raw: bytes) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(raw)):
            client.sendall(raw[position : position + 1])
            if self._closing.wait(self._drip_seconds):
                return


class Message:
    """One request or answer, in the bytes it came in."""

    def __init__(self, raw: bytes, events: list[h11.Event], keeps_alive: bool) -> None:
        self.raw = raw
        self.events = events
        self.keeps_alive = keeps_alive
        self.head = raw.partition(b"\r\n\r\n")[0]
        self.body = b"".join(bytes(it.data) for it in events if isinstance(it, h11.Data))

    @classmethod
    def read(cls, peer: socket.socket, role: Any, request: Message | None = None) -> Message | None:
        """The peer's next message, to us in that role; None where it has closed the connection.

        An answer's end depends on its request: that of a HEAD has no body.
        """
        parser = h11.Connection(role)
        for event in request.events if request else []:
            parser.send(event)
        raw, events = b"", []
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = peer.recv(65536)
                if not data and not raw:
                    return None
                raw += data
                parser.receive_data(data)
                continue
            events.append(event)
            if isinstance(event, h11.EndOfMessage):
                return cls(raw, events, parser.their_state is h11.DONE)


def _reset(client: socket.socket) -> None:
    """Close with RST in place of FIN."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.fixture
def start_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """Starts proxies, each before the server of a URL."""
    with contextlib.ExitStack() as proxies:
        yield lambda upstream, **options: proxies.enter_context(FaultProxy(upstream, **options))
