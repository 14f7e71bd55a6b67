"""The inbox: a message's effect and its record are one, whoever delivers it how often."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from idempotency import operators, outbox
from idempotency.core.errors import KeyInUse, KeyReused
from idempotency.inbox import (
    Consumed,
    MessageEnded,
    MessageInProgress,
    MessageReused,
    consume_once,
)
from idempotency.models import IdempotencyKey, OutboxMessage
from idempotency.operations import Operation
from idempotency.operators import Seen
from idempotency.testing import expire_lease, freeze_clock
from tests.integration.portable.api import (
    PATIENCE,
    Gate,
    Killed,
    background,
    key_of,
    kill,
    together,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_store")]


@outbox.channel("inbox tests")
def deliver(message: outbox.Message) -> outbox.Delivered:
    return outbox.Delivered()


def book(name: str = "booked") -> dict[str, Any]:
    return {"group": Group.objects.create(name=name).name, "of": (1, 2)}


def effects() -> int:
    return Group.objects.count()


def consume(message_id: str = "evt_1", work: Any = book, **options: Any) -> Consumed:
    return consume_once("gateway", message_id, work, **options)


def test_every_delivery_gets_the_result_of_the_first() -> None:
    result = {"group": "booked", "of": [1, 2]}
    assert consume() == Consumed(first=True, result=result)
    assert [consume(), consume()] == [Consumed(first=False, result=result)] * 2
    assert effects() == 1


@pytest.mark.parametrize("result", [None, 0, "", [], False])
def test_a_result_may_be_any_json(result: Any) -> None:
    assert consume(work=lambda: result).result == result
    again = consume(work=lambda: result)
    assert (again.first, again.result) == (False, result)


def test_a_consumer_that_fails_leaves_nothing_and_the_next_delivery_runs() -> None:
    def fail() -> None:
        book()
        with transaction.atomic():
            outbox.send("inbox tests", {})
        raise LookupError("no such payment")

    with pytest.raises(LookupError):
        consume(work=fail)
    assert (effects(), OutboxMessage.objects.count()) == (0, 0)
    assert key_of("evt_1").failure == "LookupError"
    assert consume().first
    assert (effects(), key_of("evt_1").attempt) == (1, 2)


def test_work_that_swallows_a_database_error_has_failed_and_the_next_delivery_runs() -> None:
    def swallow() -> None:
        book()
        with contextlib.suppress(IntegrityError):
            book()

    with pytest.raises(TransactionManagementError) as raised:
        consume(work=swallow)
    assert isinstance(raised.value.__cause__, IntegrityError)
    assert (effects(), key_of("evt_1").state) == (0, "failed")
    assert consume().first


def test_what_follows_leaves_with_the_effect() -> None:
    def work() -> None:
        book()
        outbox.send("inbox tests", {"booked": 1})

    consume(work=work)
    consume(work=work)
    assert OutboxMessage.objects.count() == 1


def test_other_content_under_the_id_is_refused_and_runs_nothing() -> None:
    consume(content=b'{"amount": 1}')
    with pytest.raises(MessageReused) as refused:
        consume(content=b'{"amount": 2}')
    assert isinstance(refused.value, KeyReused)
    assert effects() == 1
    assert not consume(content=b'{"amount": 1}').first


def test_an_id_belongs_to_its_source_and_its_tenant() -> None:
    consume()
    assert consume_once("bank", "evt_1", lambda: 1).first
    assert consume(tenant="other", work=lambda: 1).first
    assert IdempotencyKey.objects.filter(key="evt_1").count() == 3


def test_messages_may_come_in_any_order() -> None:
    for message_id in ("evt_3", "evt_1", "evt_2", "evt_1", "evt_3"):
        consume(message_id, lambda message_id=message_id: book(message_id))
    assert effects() == 3


@pytest.mark.django_db(transaction=True)
def test_of_many_deliveries_at_once_one_has_the_effect() -> None:
    def attempt() -> str:
        try:
            return "first" if consume().first else "later"
        except MessageInProgress:
            return "in progress"

    heard = together([attempt] * 8)
    assert heard.count("first") == 1
    assert effects() == 1
    assert not consume().first


@pytest.mark.django_db(transaction=True)
def test_a_delivery_beside_the_first_is_told_to_come_again() -> None:
    inside = Gate()

    def work() -> None:
        inside()
        book()

    with background(lambda: consume(work=work)) as first:
        inside.wait_until_reached()
        try:
            if connection.vendor != "sqlite":  # its one writer is the work
                with pytest.raises(MessageInProgress) as told:
                    consume()
                assert isinstance(told.value, KeyInUse)
                assert told.value.retry == "same_key"
                assert 0 < (told.value.retry_after or 0) <= 2
                with pytest.raises(MessageReused):
                    consume(content=b"other")
        finally:
            inside.open()
        assert first.result(PATIENCE).first
    assert not consume().first
    assert effects() == 1


def test_a_delivery_after_a_crash_runs_once_the_lease_is_over() -> None:
    def die() -> None:
        book()
        raise Killed

    with pytest.raises(Killed):
        consume(work=die)
    with pytest.raises(MessageInProgress):
        consume()
    expire_lease("evt_1")
    assert consume().first
    assert effects() == 1


def test_a_message_is_remembered_for_the_retention_or_for_as_long_as_told() -> None:
    with freeze_clock() as clock:
        consume(work=lambda: 1)
        consume("short", work=lambda: 1, ttl=60)
        clock.advance(timedelta(days=1))
        assert consume("short", work=lambda: 1, ttl=60).first
        clock.advance(timedelta(days=29) - timedelta(seconds=1))
        assert not consume(work=lambda: 1).first
        clock.advance(timedelta(seconds=1))
        assert consume(work=lambda: 1).first


@pytest.mark.parametrize(
    ("result", "error"),
    [({1, 2}, TypeError), ("x" * 2_000_000, ValueError), (Operation(), TypeError)],
    ids=["a set", "too large", "an operation"],
)
def test_a_result_that_later_deliveries_could_not_have_is_refused_with_its_effect(
    result: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        consume(work=lambda: book() and result)
    assert effects() == 0


@pytest.mark.parametrize("message_id", ["", "x" * 256])
def test_an_id_has_1_to_255_characters(message_id: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 characters"):
        consume(message_id)


def test_inside_a_transaction_it_is_refused() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match=r"transaction\.atomic"):
        consume()
    assert effects() == 0


def end(message_id: str = "evt_1", *, final: bool = True) -> IdempotencyKey:
    """What an operator does to a message whose consumer died."""
    key = key_of(message_id)
    assert operators.force_fail(key.pk, seen=Seen.of(key), actor="ann", reason="gone", final=final)
    return key_of(message_id)


def die() -> None:
    with pytest.raises(Killed):
        consume(work=kill)


def test_what_an_operator_ended_for_good_is_no_result() -> None:
    die()
    end()
    with pytest.raises(MessageEnded) as ended:
        consume()
    assert (ended.value.retry, effects()) == ("new_key", 0)


def test_what_an_operator_freed_runs_at_the_next_delivery() -> None:
    die()
    end(final=False)
    assert consume().first


def test_what_an_operator_ended_is_remembered_as_long_as_any_message() -> None:
    die()
    key = end()
    assert key.completed_at is not None
    assert key.expires_at is not None
    assert key.expires_at - key.completed_at == timedelta(days=30)
