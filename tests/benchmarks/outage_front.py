"""What stands before the gateway in ``tests.benchmarks.outage``: it can do only so much a second.

    python -m tests.benchmarks.outage_front --upstream URL --capacity 10 --port 9001 --log FILE

One line for each request goes to FILE: when it came (``time.monotonic()``, which all processes of a
machine share) and what became of it. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import socketserver
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"
#: What became of a request.
SERVED, REJECTED, DEAD = "served", "rejected", "dead"
#: Seconds that the gateway has for an answer.
TIMEOUT = 4.0


class Capacity:
    """The work that the gateway can do: the model of ``idempotency.client.simulation.recovery``, as
    a bucket in place of slices.

    Serving a request takes 1, turning it away 0.3, and ``a_second`` come in; a second's worth is
    kept, or owed. Of x requests a second beyond the capacity c, (c - 0.3 · x) / 0.7 are served, and
    from c / 0.3 on none. Safe for threads.
    """

    REJECTION = 0.3

    def __init__(self, a_second: float) -> None:
        self._a_second = self._left = a_second
        self._seen = time.monotonic()
        self._lock = threading.Lock()

    def serves(self, now: float) -> bool:
        """Whether there is room for one more, which takes it."""
        with self._lock:
            since, self._seen = max(0.0, now - self._seen), max(now, self._seen)
            self._left = min(self._a_second, self._left + since * self._a_second)
            if self._left >= 1:
                self._left -= 1
                return True
            self._left = max(-self._a_second, self._left - self.REJECTION)
            return False


class Front(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port: int, upstream: str, capacity: Capacity, log: IO[str]) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.capacity = capacity
        self._log = log
        self._noting = threading.Lock()
        super().__init__((HOST, port), Handler)

    def note(self, came: float, fate: str) -> None:
        with self._noting:
            self._log.write(f"{came:.6f} {fate}\n")

    def process_request(self, request: Any, client_address: Any) -> None:
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a caller that gave up
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: Front

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing: FILE is the log."""

    def _serve(self) -> None:
        came = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.server.capacity.serves(came):
            self.server.note(came, REJECTED)
            self._answer(503, _error("overloaded", processed=False))
            return
        try:
            status, answer = self._ask(body)
        except OSError:
            self.server.note(came, DEAD)
            self._answer(502, _error("bad_gateway"))
            return
        self.server.note(came, SERVED)
        self._answer(status, answer)

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=TIMEOUT)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:  # it died while it answered
            raise ConnectionError from error
        finally:
            upstream.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def answers(port: int) -> bool:
    """Whether a front listens there."""
    with suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False


def _error(code: str, **more: Any) -> bytes:
    return json.dumps({"error": {"code": code, "message": code, **more}}).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--capacity", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with options.log.open("w", buffering=1) as log:
        front = Front(options.port, options.upstream, Capacity(options.capacity), log)
        serving = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        stop.wait()
        front.shutdown()
        serving.join()
        with suppress(OSError):
            front.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
