"""The scheduled jobs as Celery tasks. Thin: what they do is in ``maintenance.py``,
``reconciliation.py`` and ``outbox/jobs.py``.

>>> from idempotency.tasks import beat_schedule
>>> app.conf.beat_schedule = beat_schedule()  # doctest: +SKIP

Any task may run twice or at the same time as itself: the second one leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import shared_task
from celery.schedules import crontab

# A job stops by itself after ``jobs.BUDGET``, a minute. The limits are for one that hangs,
# and below the visibility timeout of a Redis broker, which would hand it to a second worker.
_OPTIONS: dict[str, Any] = {
    "ignore_result": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "soft_time_limit": 120,
    "time_limit": 150,
}


def _task(function: Callable[[str | None], None]) -> Any:
    return shared_task(name=f"idempotency.{function.__name__}", **_OPTIONS)(function)


def _run(job: str, using: str | None) -> None:
    # Here and not above: beat_schedule is read before Django's apps are loaded.
    from idempotency import maintenance

    getattr(maintenance, job)(using)


@_task
def reclaim_expired_leases(using: str | None = None) -> None:
    _run("reclaim_expired_leases", using)


@_task
def resume_operations(using: str | None = None) -> None:
    _run("resume_operations", using)


@_task
def reconcile_operations(using: str | None = None) -> None:
    from idempotency import reconciliation

    reconciliation.reconcile_operations(using)


@_task
def create_partitions(using: str | None = None) -> None:
    _run("create_partitions", using)


@_task
def drop_expired_partitions(using: str | None = None) -> None:
    _run("drop_expired_partitions", using)


@_task
def prune_expired_keys(using: str | None = None) -> None:
    _run("prune_expired_keys", using)


@_task
def dispatch_outbox(using: str | None = None) -> None:
    from idempotency.outbox import jobs

    jobs.dispatch_outbox(using)


@_task
def prune_outbox(using: str | None = None) -> None:
    from idempotency.outbox import jobs

    jobs.prune_outbox(using)


def beat_schedule(recovery_seconds: float = 10.0, using: str | None = None) -> dict[str, Any]:
    """The schedule of all jobs, for ``app.conf.beat_schedule``.

    ``recovery_seconds``: between two runs of the jobs that recover what a crash left behind, and of
    the dispatcher, which hears of new messages sooner where the broker can be reached. A run that
    is still queued when the next one is due expires, so a stopped worker leaves no pile.
    ``using``: the database alias; by default the one that keys are written to.
    """
    plan: dict[str, tuple[Any, float]] = {
        "reclaim_expired_leases": (recovery_seconds, recovery_seconds),
        "resume_operations": (recovery_seconds, recovery_seconds),
        "reconcile_operations": (recovery_seconds, recovery_seconds),
        "dispatch_outbox": (recovery_seconds, recovery_seconds),
        "prune_expired_keys": (crontab(minute="*/10"), 600),
        "prune_outbox": (crontab(minute="5-59/10"), 600),
        # Hourly although days change daily: one that failed is repeated long before it matters.
        "create_partitions": (crontab(minute=7), 3600),
        "drop_expired_partitions": (crontab(minute=37), 3600),
    }
    return {
        f"idempotency.{job}": {
            "task": f"idempotency.{job}",
            "schedule": schedule,
            "kwargs": {"using": using},
            "options": {"expires": expires},
        }
        for job, (schedule, expires) in plan.items()
    }
