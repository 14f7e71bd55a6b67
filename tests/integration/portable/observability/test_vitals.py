"""How things stand in the database, read within bounds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from idempotency.models import MessageState, OutboxMessage
from idempotency.observability import vitals
from idempotency.observability.vitals import Backlog
from idempotency.testing import freeze_clock
from tests.integration.portable.admin.rows import write_key
from tests.integration.portable.api import statements

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with freeze_clock(NOW):
        yield


def send(
    *,
    channel: str = "tests",
    destination: str = "here",
    aggregate: str = "",
    due: timedelta = timedelta(0),
    state: MessageState = MessageState.PENDING,
) -> OutboxMessage:
    settled = state not in (MessageState.PENDING, MessageState.SENDING)
    return OutboxMessage.objects.create(
        message_id=uuid.uuid4(),
        channel=channel,
        destination=destination,
        aggregate=aggregate,
        payload={},
        state=state,
        owner=uuid.uuid4() if state is MessageState.SENDING else None,
        due_at=NOW - due,
        created_at=NOW,
        queued_at=NOW,
        settled_at=NOW if settled else None,
    )


def outbox() -> dict[str, Backlog]:
    """The channels in which something waits."""
    found = vitals.read().outbox
    return {name: backlog for name, backlog in found.items() if backlog.number}


def test_where_nothing_is_open_nothing_is_old() -> None:
    write_key("succeeded")
    write_key("processing")
    found = vitals.read()
    assert (found.abandoned, found.suspended, found.in_doubt) == (Backlog(),) * 3
    assert (outbox(), found.dead_messages, found.prune_lag) == ({}, 0, timedelta(0))


def test_an_owner_that_died_is_told_from_one_that_left_its_operation() -> None:
    write_key(lease=-2 * MINUTE)
    write_key(lease=-7 * MINUTE, recovery_point="prepared", recovery_point_at=NOW - 8 * MINUTE)
    for age in (30, 40):
        called = {"recovery_point": "prepared", "recovery_point_at": NOW - age * MINUTE}
        write_key(lease=-MINUTE, failure="no answer", **called)
    found = vitals.read()
    assert found.abandoned == Backlog(2, 7 * MINUTE)
    assert found.suspended == Backlog(2, 40 * MINUTE)


def test_a_doubt_is_as_old_as_its_call() -> None:
    write_key("in_doubt", age=90 * MINUTE, recovery_point_at=NOW - 80 * MINUTE)
    write_key("in_doubt", age=70 * MINUTE)
    assert vitals.read().in_doubt == Backlog(2, 80 * MINUTE)


def test_numbers_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "MOST", 2)
    for number in range(4):
        write_key(lease=-number * MINUTE - MINUTE)
        write_key("in_doubt")
        send()
        send(state=MessageState.DEAD)
    found = vitals.read()
    assert (found.abandoned.number, found.in_doubt.number) == (2, 2)
    assert (found.outbox["tests"].number, found.dead_messages) == (2, 2)
    # Those with the oldest lease were counted.
    assert found.abandoned.age == 4 * MINUTE


def test_each_channel_has_its_own_queue() -> None:
    send(due=3 * MINUTE)
    send(destination="there", due=5 * MINUTE, state=MessageState.SENDING)
    send(channel="other", due=-MINUTE)
    send(channel="third", due=MINUTE, state=MessageState.DELIVERED)
    assert outbox() == {"tests": Backlog(2, 5 * MINUTE), "other": Backlog(1, timedelta(0))}


def test_what_waits_for_its_predecessor_is_not_late() -> None:
    send(aggregate="a", state=MessageState.DEAD)
    send(aggregate="a", due=9 * MINUTE)
    send(aggregate="b", due=2 * MINUTE)
    assert outbox() == {"tests": Backlog(2, 2 * MINUTE)}


def test_a_long_queue_of_one_destination_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "WINDOW", 2)
    for _ in range(5):
        send(destination="long", due=MINUTE)
    send(destination="next", due=4 * MINUTE)
    assert outbox()["tests"] == Backlog(6, 4 * MINUTE)


def test_the_lag_of_pruning_is_that_of_the_longest_expired_of_the_oldest_keys() -> None:
    write_key("succeeded", expires=-90 * MINUTE)
    write_key("failed", expires=-MINUTE)
    write_key("succeeded")
    assert vitals.read().prune_lag == 90 * MINUTE


@pytest.mark.postgresql
def test_days_that_should_be_gone_are_counted(settings: Any) -> None:
    found = vitals.read()
    assert found.days_ahead is not None
    assert found.droppable_days == 0
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"TTL": 60, "RETENTION": 60}
    with freeze_clock(datetime.now(UTC) + timedelta(days=5)):
        assert vitals.read().droppable_days >= 5


@pytest.mark.postgresql
def test_every_read_goes_through_an_index_of_what_is_open() -> None:
    vitals.read()
    with statements() as sent:
        vitals.read()
    reads = [sql for sql in sent if "FROM " in sql and "idempotency_" in sql and "pg_" not in sql]
    with connection.cursor() as cursor:
        # The tables are empty here: say so instead of filling them.
        cursor.execute("SET LOCAL enable_seqscan = off")
        plans = []
        for sql in reads:
            cursor.execute(f"EXPLAIN {sql}")
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
    assert len(plans) >= 5
    for plan in plans:
        assert "Seq Scan" not in plan, plan
    used = "\n".join(plans)
    for index in ("key_lease", "key_pkey", "outbox_due", "outbox_order", "outbox_dead"):
        assert index.replace("key_pkey", "idempotencykey_pkey") in used, index
