"""Tools of the drill: time that passes, a silent gateway, a receiver, an operator's shell."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis

from config.stack import ROOT
from tests.acceptance.product import Product, wait_until

SHELL = """
import sys, django

django.setup()
from django.core.management import CommandError, call_command
from idempotency.models import OutboxMessage
from idempotency.outbox import operators
from idempotency.outbox.operators import Seen

for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except CommandError as error:
        print(error, flush=True)
"""


@contextmanager
def open_shell(product: Product) -> Iterator[Shell]:
    """`manage.py` for a whole test: its commands run as an operator's would."""
    with (product.folder / "shell.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SHELL],
            cwd=ROOT,
            env=product.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:  # the end of its input ends it
        yield Shell(process)


class Shell:
    """What an operator types, and what is printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def command(self, name: str, says: str = "done") -> None:
        self.run(f"call_command({name!r}, verbosity=0)", says)

    def run(self, statement: str, says: str = "done") -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\n")
        self._process.stdin.flush()
        assert says in self._process.stdout.readline(), statement


def later(product: Product, minutes: int) -> None:
    """Let time pass for what is open."""
    with product.connect() as connection:
        for statement in _MOVE:
            connection.execute(statement, {"by": timedelta(minutes=minutes)})


_MOVE = [
    """
    UPDATE idempotency_idempotencykey
    SET lease_expires_at = lease_expires_at - %(by)s,
        recovery_point_at = recovery_point_at - %(by)s, look_up_at = NULL
    WHERE state IN ('processing', 'in_doubt')
    """,
    """
    UPDATE idempotency_outboxmessage SET due_at = due_at - %(by)s
    WHERE state IN ('pending', 'sending')
    """,
]


@contextmanager
def silence(product: Product) -> Iterator[None]:
    """The gateway answers long after anybody waited for it."""
    product.gateway.control(delay=2)
    try:
        yield
    finally:
        product.gateway.control(delay=0)


def wait_for_probes(product: Product) -> None:
    """Until the breaker lets the first calls through again, a few seconds after it opened."""
    name = f"idempotency:client:gateway:{product.gateway.url.partition('://')[2]}"

    def is_over() -> bool:
        seconds, micro = client.time()
        return int(client.hget(name, "charge:open_until") or 0) < seconds * 1_000_000 + micro

    with redis.Redis.from_url(product.env["REDIS_URL"]) as client:
        wait_until(is_over)


class Receiver:
    """A merchant's receiver of webhooks, which answers with the status that it is told."""

    def __init__(self) -> None:
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://localhost:{self.server.server_address[1]}/hook"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
