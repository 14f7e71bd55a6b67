"""A Celery application with one task that stops where a test tells it to: `celery -A
tests.acceptance.once_app worker`. Its broker hands a task to somebody else after a second."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery.signals import task_postrun
from django.db import connection

from config.celery import app
from idempotency import celery as once_module
from idempotency.celery import once

FOLDER = Path(os.environ["ONCE_FOLDER"])
#: Seconds. The successor of a killed worker begins after both.
LIMIT, once_module.MARGIN = 4, 0.5

app.conf.update(
    beat_schedule={},
    broker_transport_options={
        "visibility_timeout": 1,
        # Kombu looks for what is overdue each second, and not each hundred.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


@once(app=app, name="acceptance.effect", time_limit=LIMIT)
def effect(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO once_effect (name) VALUES (%s)", [name])
    _hold("work", name)
    return name


@once(app=app, name="acceptance.long_effect", time_limit=60)
def long_effect(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO once_effect (name) VALUES (%s)", [name])
    _hold("work", name)
    return name


@task_postrun.connect
def _done(args: Any = (), **_: Any) -> None:
    """Committed, and not acknowledged yet."""
    _hold("done", *args)


def _hold(point: str, name: str) -> None:
    """Say that this process is here, and wait for as long as a test wants it to."""
    (FOLDER / f"{name}.{point}.{os.getpid()}.{time.monotonic_ns()}").touch()
    while (FOLDER / f"{name}.{point}.hold").exists():
        time.sleep(0.02)
