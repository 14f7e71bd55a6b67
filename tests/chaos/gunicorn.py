"""gunicorn for the chaos run: the wall clock of every second worker may be stepped.

The file in CHAOS_CLOCK holds the seconds by which it is off. What is stepped is what Python code of
that process reads: ``time.time``, ``datetime.now``, and so Django's ``timezone.now``. The monotonic
clock is not, as it is not when a machine's clock is set. The database has its own clock.
"""

import datetime
import os
import threading
from pathlib import Path
from typing import Any

import time_machine

from config.gunicorn import *  # noqa: F403

_lock = threading.Lock()
_travel: Any = None
_seen = ""


def pre_request(worker: Any, request: Any) -> None:
    if worker.age % 2:
        _look(Path(os.environ["CHAOS_CLOCK"]))


def _look(path: Path) -> None:
    global _seen, _travel
    text = path.read_text() if path.exists() else ""
    with _lock:
        if text == _seen:
            return
        _seen = text
        if _travel is not None:
            _travel.stop()
            _travel = None
        if float(text or 0):
            off = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=float(text))
            _travel = time_machine.travel(off, tick=True)
            _travel.start()
