"""Telling a dispatcher that there is something to do, so that a message need not wait for beat.

Best effort: what matters is in the table. A broker that is away costs one short attempt in
``PAUSE`` seconds and fails nothing.
"""

from __future__ import annotations

import logging
import threading
import time

from django.db import transaction

logger = logging.getLogger("idempotency")

TASK = "idempotency.dispatch_outbox"
#: Seconds between two nudges of one process; what commits in between is covered by the later one.
INTERVAL = 0.2
#: Seconds for which a broker that failed is left alone.
PAUSE = 10.0


def nudge_on_commit(using: str) -> None:
    """Nudge a dispatcher when the transaction commits; several messages cost one nudge."""
    transaction.on_commit(lambda: nudge(using), using=using, robust=True)


class _Rhythm:
    """When this process nudges next. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def take(self) -> float | None:
        """Seconds until the nudge that this commit needs; None: one that is on its way is late
        enough to find the message."""
        with self._lock:
            now = time.monotonic()
            if now < self._next - INTERVAL:
                return None
            wait = max(0.0, self._next - now)
            self._next = now + wait + INTERVAL
            return wait

    def rest(self, seconds: float) -> None:
        with self._lock:
            self._next = time.monotonic() + seconds + INTERVAL


_rhythms: dict[str, _Rhythm] = {}


def nudge(using: str) -> None:
    """Ask Celery, where it is configured, for a run of the dispatcher."""
    rhythm = _rhythms.setdefault(using, _Rhythm())
    wait = rhythm.take()
    if wait is None:
        return
    try:
        _publish(using, wait)
    except Exception:
        rhythm.rest(PAUSE)
        logger.warning("could not nudge the dispatcher; beat will", exc_info=True)


def _publish(using: str, wait: float) -> None:
    try:
        from celery import current_app
    except ImportError:  # the ``celery`` extra is not installed: a command or beat dispatches
        return
    if not current_app.conf.broker_url:
        return
    options = {"countdown": wait} if wait else {}
    current_app.send_task(TASK, kwargs={"using": using}, retry=False, expires=PAUSE, **options)
