"""Telling a dispatcher that there is something to do, so that a message need not wait for beat.

Best effort: what matters is in the table. The broker is asked in a thread, because Celery takes
seconds to find that it is away, and the request that has just committed must not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from django.db import transaction

logger = logging.getLogger("idempotency")

TASK = "idempotency.dispatch_outbox"
#: Seconds between two nudges of one process; what commits in between shares the later one.
INTERVAL = 0.2
#: Seconds for which a broker that failed is left alone.
PAUSE = 10.0

_sleep = time.sleep


def nudge_on_commit(using: str) -> None:
    """Nudge a dispatcher when the transaction commits; several messages cost one nudge."""
    transaction.on_commit(lambda: nudge(using), using=using, robust=True)


def nudge(using: str) -> None:
    """Ask Celery, where it is configured, for a run of the dispatcher. Returns at once."""
    # The application of this thread: Celery keeps one for each, and a thread of ours has none.
    app = _celery()
    if app is not None:
        _nudgers.setdefault(using, _Nudger(using)).ask(app)


class _Nudger:
    """Nudges for one database. A thread lives for as long as they are wanted."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._lock = threading.Lock()
        self._app: Any = None
        self._wanted = self._at_work = False

    def ask(self, app: Any) -> None:
        """Have one sent after this moment."""
        with self._lock:
            self._app, self._wanted = app, True
            if self._at_work:
                return
            self._at_work = True
        threading.Thread(target=self._work, name="outbox-nudge", daemon=True).start()

    def _work(self) -> None:
        while self._take():
            try:
                self._app.send_task(TASK, kwargs={"using": self._using}, retry=False, expires=PAUSE)
            except Exception:
                logger.warning("could not nudge the dispatcher; beat will", exc_info=True)
                _sleep(PAUSE)
            else:
                _sleep(INTERVAL)

    def _take(self) -> bool:
        with self._lock:
            self._at_work, self._wanted = self._wanted, False
            return self._at_work


_nudgers: dict[str, _Nudger] = {}
# A child has none of its parent's threads, and perhaps a lock that one of them held.
os.register_at_fork(after_in_child=_nudgers.clear)


def _celery() -> Any:
    """The Celery application; None without one that has a broker: a command or beat dispatches."""
    try:
        from celery import current_app
    except ImportError:  # the ``celery`` extra is not installed
        return None
    return current_app._get_current_object() if current_app.conf.broker_url else None
