"""The Celery side of the scheduled jobs: names, limits, and a schedule that leaves no pile."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery.schedules import crontab

from config.celery import app
from idempotency import jobs, maintenance, reconciliation, tasks
from idempotency.outbox import jobs as outbox_jobs

JOBS = {
    "reclaim_expired_leases": maintenance,
    "resume_operations": maintenance,
    "reconcile_operations": reconciliation,
    "create_partitions": maintenance,
    "drop_expired_partitions": maintenance,
    "prune_expired_keys": maintenance,
    "dispatch_outbox": outbox_jobs,
    "prune_outbox": outbox_jobs,
}


@pytest.mark.parametrize("job", JOBS)
def test_each_job_is_a_task_of_that_name(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(JOBS[job], job, calls.append)
    task = getattr(tasks, job)

    task.run("other")

    assert calls == ["other"]
    assert task.name == f"idempotency.{job}"
    assert task.name in app.tasks


@pytest.mark.parametrize("job", JOBS)
def test_a_task_may_be_lost_repeated_and_cut_short(job: str) -> None:
    task = getattr(tasks, job)

    assert task.acks_late
    assert task.reject_on_worker_lost
    assert task.ignore_result
    # A job stops by itself first; then Celery asks, then it kills, then a broker would redeliver.
    visibility = app.conf.broker_transport_options["visibility_timeout"]
    assert jobs.BUDGET.total_seconds() < task.soft_time_limit < task.time_limit < visibility


def test_the_schedule_runs_every_job_and_expires_what_queues() -> None:
    schedule = tasks.beat_schedule(recovery_seconds=3.0)

    assert sorted(entry["task"] for entry in schedule.values()) == sorted(
        f"idempotency.{job}" for job in JOBS
    )
    assert all(entry["task"] in app.tasks for entry in schedule.values())
    for job in ("reclaim_expired_leases", "resume_operations", "dispatch_outbox"):
        entry = schedule[f"idempotency.{job}"]
        assert (entry["schedule"], entry["options"]) == (3.0, {"expires": 3.0})
    for job in (
        "create_partitions",
        "drop_expired_partitions",
        "prune_expired_keys",
        "prune_outbox",
    ):
        entry = schedule[f"idempotency.{job}"]
        assert isinstance(entry["schedule"], crontab)
        assert entry["options"]["expires"] <= 3600
    assert all(entry["kwargs"] == {"using": None} for entry in schedule.values())


def test_the_schedule_can_name_a_database() -> None:
    schedule = tasks.beat_schedule(using="keys")

    assert all(entry["kwargs"] == {"using": "keys"} for entry in schedule.values())


def test_the_schedule_is_read_before_django_is_set_up() -> None:
    code = "from idempotency.tasks import beat_schedule; print(len(beat_schedule()))"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == str(len(JOBS))
