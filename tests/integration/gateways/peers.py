"""Servers that misbehave by script."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from tests.plugins.gateway import PATIENCE

Act = Callable[[socket.socket], None]


class Script:
    """A server that plays one act a connection, then takes no more connections."""

    def __init__(self, *acts: Act) -> None:
        self.requests: list[bytes] = []
        self._acts = acts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        try:
            for number, act in enumerate(self._acts, 1):
                try:
                    peer, _ = self._listener.accept()
                except OSError:  # closed by the test: nobody came any more
                    return
                if number == len(self._acts):
                    self._listener.close()
                with closing(peer):
                    peer.settimeout(PATIENCE)
                    self.requests.append(read_request(peer))
                    act(peer)
        finally:
            self._listener.close()

    def close(self) -> None:
        with suppress(OSError):  # closed already, unless it still waits for somebody
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def read_request(peer: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += peer.recv(4096)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < sum(lengths):
        body += peer.recv(4096)
    return head + b"\r\n\r\n" + body


def answers(status: int, body: Any, **headers: str) -> Act:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    raw = "\r\n".join(lines).encode() + b"\r\n\r\n" + content
    return lambda peer: peer.sendall(raw)


def drops(peer: socket.socket) -> None:
    """Close without a byte."""


def resets(peer: socket.socket) -> None:
    # Linger of zero seconds: close() sends RST.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def drips(raw: bytes) -> Act:
    """Send a byte every 50 ms: each read succeeds in time, the whole never does."""

    def drip(peer: socket.socket) -> None:
        stopped = threading.Event()
        try:
            for byte in raw:
                peer.sendall(bytes([byte]))
                stopped.wait(0.05)
        except ConnectionError:  # the other side gave up, as it should
            return

    return drip


CHARGED = {"id": "gch_1", "status": "succeeded"}
BUSY = {"error": {"code": "busy", "message": "", "processed": False}}
charges = answers(201, CHARGED)
is_down = answers(503, BUSY)


Play = Callable[..., Script]


class Counter:
    """A server that keeps connections open, and counts them."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._peers: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed by the test
                return
            self.connections += 1
            self._peers.append(peer)
            thread = threading.Thread(target=self._answer, args=[peer])
            self._threads.append(thread)
            thread.start()

    def _answer(self, peer: socket.socket) -> None:
        body = json.dumps(CHARGED).encode()
        head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n"
        with closing(peer):
            while peer.recv(1, socket.MSG_PEEK):
                read_request(peer)
                peer.sendall(head.encode() + body)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE)
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a connection was left open"
