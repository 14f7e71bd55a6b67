"""Telling Celery of new messages: after the commit, seldom, and never at the request's cost."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from celery import current_app
from django.db import transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import nudging
from idempotency.outbox.nudging import nudge
from tests.integration.portable.api import PATIENCE, Gate, until
from tests.integration.portable.outbox.mail import write

pytestmark = pytest.mark.django_db


class Broker:
    """What was published; a test may hold it, or take it away."""

    def __init__(self) -> None:
        self.sent: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.hold: Any = lambda: None
        self.error: Exception | None = None
        self.pauses: list[float] = []

    def send_task(self, name: str, **options: Any) -> None:
        self.hold()
        if self.error is not None:
            raise self.error
        self.sent.put((name, options))

    def is_left_alone(self) -> bool:
        return not any(thread.name == "outbox-nudge" for thread in threading.enumerate())


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(nudging, "nudge", nudge)
    monkeypatch.setattr(nudging, "_sleep", broker.pauses.append)
    monkeypatch.setattr(nudging, "_nudgers", {})
    monkeypatch.setattr(current_app, "send_task", broker.send_task)
    monkeypatch.setattr(current_app.conf, "broker_url", "redis://somewhere")
    return broker


@pytest.fixture
def commit(django_capture_on_commit_callbacks: Any) -> Any:
    def write_and_commit(*names: str) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            write(*names)

    return write_and_commit


def test_a_commit_asks_for_a_run_of_the_dispatcher(broker: Broker, commit: Any) -> None:
    commit("a", "b")
    name, options = broker.sent.get(timeout=PATIENCE)
    assert name == "idempotency.dispatch_outbox"
    assert (options["kwargs"], options["retry"]) == ({"using": "default"}, False)
    until(broker.is_left_alone)
    assert set(broker.pauses) == {nudging.INTERVAL}


def test_commits_while_one_is_on_its_way_share_the_one_after_it(
    broker: Broker, commit: Any
) -> None:
    broker.hold = gate = Gate()
    commit("first")
    gate.wait_until_reached()
    for _ in range(10):
        commit("more")
    gate.open()
    until(broker.is_left_alone)
    assert broker.sent.qsize() == 2


def test_work_that_rolled_back_nudges_nobody(
    broker: Broker, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        outbox.send("mail", {"name": "a"})
        transaction.set_rollback(True)
    until(broker.is_left_alone)
    assert broker.sent.empty()


def test_a_broker_that_hangs_or_fails_costs_the_request_nothing(
    broker: Broker, commit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.hold = gate = Gate()
    broker.error = OSError("no broker")
    commit("a")  # returns, although the broker does not
    gate.wait_until_reached()
    assert OutboxMessage.objects.count() == 1
    gate.open()
    until(broker.is_left_alone)
    assert broker.pauses == [nudging.PAUSE]
    assert "beat will" in caplog.text

    broker.error = None
    commit("b")
    broker.sent.get(timeout=PATIENCE)


def test_without_a_broker_nobody_is_nudged(
    broker: Broker, commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_app.conf, "broker_url", None)
    commit("a")
    until(broker.is_left_alone)
    assert broker.sent.empty()
