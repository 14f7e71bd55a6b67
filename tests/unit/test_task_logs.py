"""A task knows which request it works for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from celery.signals import before_task_publish, task_postrun, task_prerun

from config.celery import app
from idempotency.propagation import current_request_id, serving


@pytest.fixture
def task() -> Iterator[Any]:
    task = app.tasks["idempotency.dispatch_outbox"]
    yield task
    task.pop_request()


def run(task: Any, **request: str) -> tuple[str, dict[str, Any]]:
    """What is known while the task runs: the request's id, and what its log lines bear."""
    task.push_request(id="t-1", **request)
    task_prerun.send(sender=task, task_id="t-1", task=task)
    found = current_request_id(), structlog.contextvars.get_contextvars()
    task_postrun.send(sender=task, task_id="t-1", task=task)
    return found


def test_a_message_names_the_request_that_sent_it() -> None:
    headers: dict[str, Any] = {}
    before_task_publish.send(sender="a task", headers=headers)
    assert headers == {}
    with serving("from-the-shop-7"):
        before_task_publish.send(sender="a task", headers=headers)
    assert headers == {"request_id": "from-the-shop-7"}


def test_a_task_works_for_that_request(task: Any) -> None:
    request_id, logged = run(task, request_id="from-the-shop-7")
    assert request_id == "from-the-shop-7"
    assert logged == {"request_id": "from-the-shop-7", "task": "idempotency.dispatch_outbox"}
    assert (current_request_id(), structlog.contextvars.get_contextvars()) == ("", {})


def test_a_task_of_the_schedule_works_for_itself(task: Any) -> None:
    assert run(task)[0] == "t-1"
