"""A relay between the product and PostgreSQL that cuts the wire at a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Literal
from urllib.parse import parse_qs, urlsplit, urlunsplit

from psycopg.conninfo import conninfo_to_dict

#: Cut before the COMMIT reaches the server, or before its confirmation reaches the product.
Side = Literal["before", "after"]


class WireCutter:
    """Relays connections to the server of `url` until it is told to cut one."""

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        parts = urlsplit(url)
        port = self._listener.getsockname()[1]
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        assert set(parse_qs(parts.query)) <= {"host"}
        #: Where the product reaches the same database through this relay.
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}", query=""))
        self._lock = threading.Lock()
        self._side: Side | None = None
        self._commits_to_spare = 0

    def __enter__(self) -> WireCutter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._listener.close()

    def cut(self, side: Side, commit: int) -> None:
        """Cut at the commit of that number, counted from now; 1 is the next one."""
        with self._lock:
            self._side, self._commits_to_spare = side, commit - 1

    @property
    def has_cut(self) -> bool:
        return self._side is None

    def _accept(self) -> None:
        while True:
            try:
                product, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._relay, args=[product], daemon=True).start()

    def _relay(self, product: socket.socket) -> None:
        with product, self._connect() as server:
            back = threading.Thread(target=_pump, args=[server, product], daemon=True)
            back.start()
            while data := _receive(product):
                side = self._side_to_cut(data)
                if side == "before":
                    break
                if side == "after":
                    # The confirmation is in no buffer of ours yet: nothing is sent back from here.
                    product.shutdown(socket.SHUT_WR)
                    server.sendall(data)
                    self._wait_for_the_commit(server)
                    break
                server.sendall(data)
            for end in (product, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            back.join()

    def _wait_for_the_commit(self, server: socket.socket) -> None:
        """The server has answered once it goes on to read, and find, the end of the connection."""
        server.shutdown(socket.SHUT_WR)
        while _receive(server):
            pass

    def _side_to_cut(self, data: bytes) -> Side | None:
        with self._lock:
            if self._side is None or b"COMMIT" not in data:
                return None
            if self._commits_to_spare:
                self._commits_to_spare -= 1
                return None
            side, self._side = self._side, None
            return side

    def _connect(self) -> socket.socket:
        host, port = str(self._server.get("host", "localhost")), self._server.get("port", 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host, int(port)))


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _receive(source):
        try:
            target.sendall(data)
        except OSError:  # cut
            return


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""
