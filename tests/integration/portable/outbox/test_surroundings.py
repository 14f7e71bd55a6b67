"""What belongs to an outbox besides sending: checks, counters, and the kit for others' tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import Dead, Retry, channels, checks, metrics
from idempotency.testing import FrozenClock, deliver_outbox
from tests.integration.portable.outbox.mail import Mail, dispatch, states, write

pytestmark = pytest.mark.django_db


def test_w009_a_lease_that_the_scheduled_run_cannot_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "_registry", {})
    outbox.channel("quick", lease=90)(lambda message: outbox.Delivered())
    assert checks.check_leases() == []
    outbox.channel("slow", lease=91)(lambda message: outbox.Delivered())
    (warning,) = checks.check_leases()
    assert warning.id == "idempotency.W009"
    assert "'slow' has a lease of 0:01:31" in warning.msg


def test_w008_messages_that_wait_for_a_channel_that_is_gone(
    django_assert_num_queries: Any,
) -> None:
    write("a", "b", "delivered")
    OutboxMessage.objects.filter(payload__name="b").update(channel="renamed")
    done = {"channel": "gone", "state": "delivered", "settled_at": "2026-01-01T00:00:00Z"}
    OutboxMessage.objects.filter(payload__name="delivered").update(**done)
    (warning,) = checks.check_channels(databases=["default"])
    assert warning.id == "idempotency.W008"
    assert "'renamed'" in warning.msg
    with django_assert_num_queries(0):
        assert checks.check_channels() == []


def test_w008_is_silent_before_the_first_migration() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE idempotency_outboxmessage RENAME TO elsewhere")
        assert checks.check_channels(databases=["default"]) == []
        transaction.set_rollback(True)


def test_deliveries_are_counted_by_channel_and_outcome(clock: FrozenClock) -> None:
    def counted(outcome: str) -> float:
        assert metrics.DELIVERIES is not None
        value: float = metrics.DELIVERIES.labels("mail", outcome)._value.get()
        return value

    before = {outcome: counted(outcome) for outcome in ("delivered", "retried", "dead")}
    write("a", "b", "c", "d")
    Mail.answers |= {"b": [Retry("later")], "c": [Retry("later")], "d": [Dead("no")]}
    dispatch()
    after = {outcome: counted(outcome) - before[outcome] for outcome in before}
    assert after == {"delivered": 1, "retried": 2, "dead": 1}


def test_a_projects_test_delivers_what_is_due_and_moves_the_clock(clock: FrozenClock) -> None:
    write("a", "b")
    Mail.answers["b"] = [Retry("later")]
    assert deliver_outbox() == 1
    clock.advance(timedelta(hours=1))
    assert deliver_outbox() == 1
    assert states() == {"a": "delivered", "b": "delivered"}
