"""The Celery application: `celery -A config.celery worker -B`."""

import os

from celery import Celery
from django.conf import settings

from idempotency.tasks import beat_schedule

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = beat_schedule(settings.IDEMPOTENCY_BEAT)
