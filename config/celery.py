"""The Celery application: `celery -A config.celery worker -B`."""

import os
from contextlib import ExitStack
from typing import Any

import structlog
from celery import Celery
from celery.signals import (
    before_task_publish,
    task_postrun,
    task_prerun,
    worker_process_shutdown,
)
from django.conf import settings

from idempotency import propagation
from idempotency.tasks import beat_schedule
from payments.tasks import BEAT_SCHEDULE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.set_default()  # for every thread; without it only for the one that imports this
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = beat_schedule(settings.IDEMPOTENCY_BEAT) | BEAT_SCHEDULE


@before_task_publish.connect
def _say_for_whom(headers: dict[str, Any], **_: Any) -> None:
    if request_id := propagation.current_request_id():
        headers["request_id"] = request_id


@task_prerun.connect
def _begin(task_id: str, task: Any, **_: Any) -> None:
    """A task works for the request that enqueued it; one that beat enqueued, for itself."""
    request_id = propagation.accept(task.request.get("request_id") or task_id)
    task.request.serving = serving = ExitStack()
    serving.enter_context(propagation.serving(request_id))
    about = structlog.contextvars.bound_contextvars(request_id=request_id, task=task.name)
    serving.enter_context(about)


@task_postrun.connect
def _end(task: Any, **_: Any) -> None:
    task.request.serving.close()


@worker_process_shutdown.connect
def _stop_showing(pid: int, **_: Any) -> None:
    """See `child_exit` in config/gunicorn.py."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid)
