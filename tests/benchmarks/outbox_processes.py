"""The processes of ``outbox_crashes``: a receiver with an inbox, and dispatchers that are killed.

Each is one of `python -m tests.benchmarks.outbox_processes receiver | dispatchers URL`. The second
one forks a dispatcher for each kill: a start from nothing would take a second.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.db import connection, connections, transaction  # noqa: E402

from idempotency import outbox  # noqa: E402
from idempotency.client.backoff import Fixed  # noqa: E402
from idempotency.client.breaker import BreakerPolicy  # noqa: E402
from idempotency.inbox import MessageInProgress, consume_once  # noqa: E402
from idempotency.models import OutboxMessage  # noqa: E402
from idempotency.outbox import signals  # noqa: E402
from idempotency.outbox.claims import UNSENT  # noqa: E402
from idempotency.outbox.dispatcher import Dispatcher  # noqa: E402

CHANNEL = "crash"
#: Seconds. What a killed dispatcher had claimed is claimed again this soon.
LEASE = 0.5
#: Seconds after which a dispatcher that was not killed gives up.
GUARD = 30
AGGREGATES = ("a", "b")
THREADS = 4


# The receiver


class Receiver(BaseHTTPRequestHandler):
    """Writes down what arrives, and acts on each message once."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self._answer(_receive(self.headers["Message-Id"], body))
        finally:
            connections.close_all()

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


def _receive(message_id: str, body: bytes) -> int:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO crash_arrival (message_id) VALUES (%s)", [message_id])
    try:
        consume_once("crash", message_id, lambda: _act(message_id, body), content=body)
    except MessageInProgress:
        return 409
    return 200


def _act(message_id: str, body: bytes) -> None:
    told = json.loads(body)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO crash_effect (message_id, aggregate, number) VALUES (%s, %s, %s)",
            [message_id, told["aggregate"], told["number"]],
        )


def receiver() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    print(server.server_port, flush=True)
    server.serve_forever()


# The dispatchers


def register(url: str) -> None:
    """A channel that posts to the receiver."""
    address = urlsplit(url).netloc

    @outbox.channel(
        CHANNEL,
        attempts=10_000,
        lease=LEASE,
        backoff=Fixed(0.05),
        breaker=BreakerPolicy(minimum_calls=1_000_000),
    )
    def deliver(message: outbox.Message) -> outbox.Ending:
        to = http.client.HTTPConnection(address, timeout=5)
        body = json.dumps(message.payload, sort_keys=True)
        to.request("POST", "/", body, {"Message-Id": str(message.id)})
        status = to.getresponse().status
        to.close()
        return outbox.Delivered() if status == 200 else outbox.Retry(str(status))


def write(round_number: int) -> None:
    """One more message of each aggregate, one of none, and one that rolls back."""
    for aggregate in (*AGGREGATES, ""):
        write_one(aggregate, round_number)
    with transaction.atomic():
        outbox.send(CHANNEL, {"aggregate": "never", "number": 0})
        transaction.set_rollback(True)


def write_one(aggregate: str, number: int) -> None:
    with transaction.atomic():
        payload = {"aggregate": aggregate, "number": number}
        outbox.send(CHANNEL, payload, destination="receiver", aggregate=aggregate)


def die_at(point: str, nth: int) -> None:
    """SIGKILL this process when it passes the point for the n-th time."""
    passed = 0

    def arrive(*_: Any, **__: Any) -> None:
        nonlocal passed
        passed += 1
        if passed == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    if point == "marking":  # inside the transaction that marks

        def look(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            result = execute(sql, *rest)
            if sql.startswith('UPDATE "idempotency_outboxmessage"'):
                arrive()
            return result

        connection.execute_wrappers.append(look)
    else:
        named = {"claimed": signals.message_claimed, "sent": signals.message_sent}
        named["settled"] = signals.message_settled
        named[point].connect(arrive, weak=False)


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(GUARD)
        try:
            work()
        finally:
            os._exit(0)
    return child


def dispatch_until_killed(point: str, nth: int) -> None:
    die_at(point, nth)
    dispatcher = Dispatcher(threads=THREADS)
    while True:
        dispatcher.run()
        write_one("", 0)  # the other one may have taken all there was


def drain() -> None:
    dispatcher = Dispatcher(threads=THREADS)
    while OutboxMessage.objects.filter(state__in=UNSENT).exists():
        dispatcher.run()
        time.sleep(0.01)


def dispatchers(url: str) -> None:
    """Obey lines of stdin; answer each with how the children ended."""
    register(url)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "write":
            write(int(arguments[0]))
            connections.close_all()  # no child may inherit it
            print("written", flush=True)
            continue
        children = [_start(command, argument) for argument in arguments or [""]]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(*ended, flush=True)


def _start(command: str, argument: str) -> int:
    if command == "drain":
        return fork(drain)
    point, nth = argument.split(":")
    return fork(lambda: dispatch_until_killed(point, int(nth)))


if __name__ == "__main__":
    if sys.argv[1] == "receiver":
        receiver()
    else:
        dispatchers(sys.argv[2])
