"""The threads that deliver. The database work stays with the dispatcher's own thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from django.db import close_old_connections, connections

from idempotency.outbox.claims import Claimed, Lane
from idempotency.outbox.marks import Finished
from idempotency.outbox.messages import Retry

logger = logging.getLogger("idempotency")

Send = Callable[[Claimed], Finished]

#: Seconds that closing waits for threads. What is still under way then is sent again by others,
#: once its lease is over.
PATIENCE: Final = 5.0


class Inline:
    """No threads: a message is delivered while it is started. For tests inside a transaction, which
    a thread's connection could not see."""

    free: Final = 1

    def __init__(self, send: Send) -> None:
        self._send = send
        self._finished: list[Finished] = []

    @property
    def under_way(self) -> int:
        return len(self._finished)

    @property
    def lanes(self) -> dict[Lane, int]:
        return {}

    def start(self, claimed: Claimed) -> None:
        """Deliver it."""
        self._finished.append(_end(self._send, claimed))

    def collect(self, timeout: float) -> list[Finished]:
        """What has ended: all of it."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """There is nothing to close."""


class Senders:
    """``count`` threads; one message each. Nothing queues here: a message that waited for a thread
    would use up its lease."""

    def __init__(self, count: int, send: Send) -> None:
        self._send = send
        self._count = count
        self._jobs: queue.SimpleQueue[Claimed | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lanes: Counter[Lane] = Counter()

    @property
    def under_way(self) -> int:
        return self._lanes.total()

    @property
    def free(self) -> int:
        return self._count - self.under_way

    @property
    def lanes(self) -> dict[Lane, int]:
        """How many are under way for each destination."""
        return dict(self._lanes)

    def start(self, claimed: Claimed) -> None:
        """Deliver it in a thread."""
        self._lanes[claimed.lane] += 1
        if len(self._threads) < self.under_way:
            thread = threading.Thread(target=self._work, name="outbox", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(claimed)

    def collect(self, timeout: float) -> list[Finished]:
        """What has ended, waiting up to ``timeout`` seconds for the first."""
        finished: list[Finished] = []
        deadline = time.monotonic() + timeout
        try:
            while self.under_way:
                wait = 0.0 if finished else max(0.0, deadline - time.monotonic())
                one = self._finished.get(timeout=wait) if wait else self._finished.get_nowait()
                finished.append(one)
                self._lanes[one.claimed.lane] -= 1
        except queue.Empty:
            pass
        self._lanes += Counter()  # drops the zeros
        return finished

    def close(self) -> None:
        """Let the threads end."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        try:
            while (claimed := self._jobs.get()) is not None:
                self._finished.put(_end(self._send, claimed))
                close_old_connections()
        finally:
            connections.close_all()


def _end(send: Send, claimed: Claimed) -> Finished:
    """Whatever is raised, SystemExit too, is an end: the dispatcher waits for one."""
    try:
        return send(claimed)
    except BaseException as error:
        logger.exception("message %s: the sender failed", claimed.message.id)
        return Finished(claimed, Retry(f"{type(error).__name__}: {error}"), 0.0)
