"""The Celery application: `celery -A config.celery worker -B`."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown
from django.conf import settings

from idempotency.tasks import beat_schedule
from payments.tasks import BEAT_SCHEDULE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = beat_schedule(settings.IDEMPOTENCY_BEAT) | BEAT_SCHEDULE


@worker_process_shutdown.connect
def _stop_showing(pid: int, **_: Any) -> None:
    """See `child_exit` in config/gunicorn.py."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid)
