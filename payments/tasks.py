"""The product's own scheduled job as a Celery task."""

from typing import Any

from celery import shared_task
from celery.schedules import crontab

#: It reads days of two ledgers, so it may take longer than other tasks; less than the visibility
#: timeout of the broker all the same.
_LIMITS = {"soft_time_limit": 240, "time_limit": 270}


@shared_task(
    name="payments.compare_ledgers",
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    **_LIMITS,
)
def compare_ledgers() -> None:
    # Here and not above: the schedule is read before Django's apps are loaded.
    from payments.reconciliation.job import compare_ledgers

    compare_ledgers()


#: Twice a night, so that one run which failed is repeated before anybody comes to work.
BEAT_SCHEDULE: dict[str, Any] = {
    "payments.compare_ledgers": {
        "task": "payments.compare_ledgers",
        "schedule": crontab(minute=17, hour="2,4"),
        "options": {"expires": 3600},
    }
}
