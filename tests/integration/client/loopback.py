"""An HTTP server on loopback that answers as a test says, and remembers what it saw."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

PATIENCE = 30.0


@dataclass
class Seen:
    """One request that arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    #: Of the client, so one for each connection.
    port: int


@dataclass
class Answer:
    """What to answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)


class Server(ThreadingHTTPServer):
    """``answer`` is asked for each request, in the thread of its connection."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, answer: Callable[[Seen], Answer] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer or (lambda seen: Answer())
        self.seen: list[Seen] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def use_tls(self, certificate: str) -> None:
        """Speak TLS, with the certificate and key of a file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.scheme = "https"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error here."""

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        seen = Seen(
            self.command, self.path, dict(self.headers.items()), body, self.client_address[1]
        )
        self.server.seen.append(seen)
        answer = self.server.answer(seen)
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
