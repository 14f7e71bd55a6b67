"""Telling Celery of new messages: seldom, after the commit, and never at the request's cost."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from django.db import transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import nudging
from idempotency.outbox.nudging import _publish
from tests.integration.portable.outbox.mail import write

pytestmark = pytest.mark.django_db


class Broker:
    """What was published, and when; time passes when a test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.now = 1000.0
        self.error: Exception | None = None

    def send_task(self, name: str, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append((name, options))

    @property
    def at(self) -> list[float]:
        return [options.get("countdown", 0.0) for _, options in self.sent]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(nudging, "_publish", _publish)
    monkeypatch.setattr(current_app, "send_task", broker.send_task)
    monkeypatch.setattr(current_app.conf, "broker_url", "redis://somewhere")
    monkeypatch.setattr(nudging.time, "monotonic", lambda: broker.now)
    monkeypatch.setattr(nudging, "_rhythms", {})
    return broker


def commit(*names: str, capture: Any) -> None:
    with capture(execute=True):
        write(*names)


def test_a_commit_asks_for_a_run_of_the_dispatcher(
    broker: Broker, django_capture_on_commit_callbacks: Any
) -> None:
    commit("a", "b", capture=django_capture_on_commit_callbacks)
    ((name, options), *_) = broker.sent
    assert name == "idempotency.dispatch_outbox"
    assert options["kwargs"] == {"using": "default"}
    assert options["retry"] is False


def test_commits_in_quick_succession_share_a_nudge_that_comes_after_the_last(
    broker: Broker, django_capture_on_commit_callbacks: Any
) -> None:
    capture = django_capture_on_commit_callbacks
    for _ in range(10):
        commit("a", capture=capture)
        broker.now += nudging.INTERVAL / 100
    assert broker.at == [0.0, pytest.approx(nudging.INTERVAL, rel=0.02)]

    broker.now += nudging.INTERVAL * 2
    commit("a", capture=capture)
    assert broker.at[2:] == [0.0]


def test_work_that_rolled_back_nudges_nobody(
    broker: Broker, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        outbox.send("mail", {"name": "a"})
        transaction.set_rollback(True)
    assert broker.sent == []


def test_a_broker_that_is_away_fails_nothing_and_is_left_alone_for_a_while(
    broker: Broker, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    capture = django_capture_on_commit_callbacks
    broker.error = OSError("no broker")
    commit("a", capture=capture)
    assert OutboxMessage.objects.count() == 1
    assert "beat will" in caplog.text

    broker.error = None
    commit("b", capture=capture)
    assert broker.sent == []
    broker.now += nudging.PAUSE + 1
    commit("c", capture=capture)
    assert len(broker.sent) == 1


def test_without_a_broker_nobody_is_nudged(
    broker: Broker, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_app.conf, "broker_url", None)
    commit("a", capture=django_capture_on_commit_callbacks)
    assert broker.sent == []
