"""A merchant's receiver: it fails, stalls and dies as told, and acts once on each message.

Whether it acts once is for the inbox to see to, as it would be in a merchant's Django.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial

from django.db import connections
from standardwebhooks import Webhook

from idempotency.inbox import IdempotencyError, consume_once
from tests.integration.client.loopback import Answer, Seen, Server


class Receiver:
    """``fails`` and ``stalls`` are shares of the deliveries. A delivery that stalls has acted, and
    gets its answer after ``stall_seconds``, when nobody waits for it any more."""

    def __init__(
        self,
        *,
        fails: float = 0.0,
        stalls: float = 0.0,
        stall_seconds: float = 0.0,
        act: Callable[[str], None] = lambda message_id: None,
    ) -> None:
        self._fails, self._stalls, self._stall_seconds = fails, stalls, stall_seconds
        self._act = act
        self._random = random.Random(1)
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._port = 0
        #: Set once its endpoint is known.
        self.secret = ""
        #: What came of the deliveries that arrived.
        self.counts: Counter[str] = Counter()
        #: How often each message was acted on, within a transaction of the inbox.
        self.acted: Counter[str] = Counter()
        #: Seconds from the event to the first arrival of each message.
        self.delays: dict[str, float] = {}

    @property
    def url(self) -> str:
        return f"http://localhost:{self._port}/hook"

    def live(self) -> None:
        """Listen, on the same port as before."""
        if not self._port:
            self._server = Server(self._answer)
            self._port = self._server.server_address[1]
        else:
            self._server = _on(self._port, self._answer)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Refuse connections from now on."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, seen: Seen) -> Answer:
        headers = {name.lower(): value for name, value in seen.headers.items()}
        message_id = headers["webhook-id"]
        Webhook(self.secret).verify(seen.body, headers)
        with self._lock:
            self.delays.setdefault(message_id, time.time() - _moment(seen.body))
            draw = self._random.random()
        if draw < self._fails:
            return self._count("failed", 500)
        if not self._consume(message_id, seen.body):
            return self._count("busy", 409)
        if draw < self._fails + self._stalls:
            time.sleep(self._stall_seconds)
            return self._count("stalled", 200)
        return self._count("answered", 200)

    def _consume(self, message_id: str, body: bytes) -> bool:
        try:
            act = partial(self._act, message_id)
            consumed = consume_once(self.url, message_id, act, content=body)
        except IdempotencyError:
            return False
        finally:
            connections.close_all()
        if consumed.first:
            with self._lock:
                self.acted[message_id] += 1
        else:
            self._count("known", 200)
        return True

    def _count(self, what: str, status: int) -> Answer:
        with self._lock:
            self.counts[what] += 1
        return Answer(status, b"")


def _moment(body: bytes) -> float:
    return datetime.fromisoformat(json.loads(body)["timestamp"]).timestamp()


def _on(port: int, answer: Callable[[Seen], Answer]) -> Server:
    class Again(Server):
        def server_bind(self) -> None:
            self.server_address = ("127.0.0.1", port)
            super().server_bind()

    return Again(answer)
