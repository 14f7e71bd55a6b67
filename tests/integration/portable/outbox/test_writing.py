"""Writing a message: with the work or not at all."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import UnknownChannel
from tests.integration.portable.outbox.mail import Mail, dispatch, mail, write

pytestmark = pytest.mark.django_db


def test_the_message_is_there_when_the_work_is_and_not_otherwise() -> None:
    with transaction.atomic():
        Group.objects.create(name="kept")
        message_id = outbox.send("mail", {"name": "kept"})
    with transaction.atomic():
        outbox.send("mail", {"name": "lost"})
        transaction.set_rollback(True)
    dispatch()
    assert [message.id for message in Mail.arrived] == [message_id]


def test_without_a_transaction_it_is_refused_also_in_the_one_of_a_test() -> None:
    with pytest.raises(RuntimeError, match=r"Call it inside transaction\.atomic"):
        outbox.send("mail", {})
    assert not OutboxMessage.objects.exists()


def test_a_misspelt_channel_is_refused_where_it_is_written() -> None:
    with transaction.atomic(), pytest.raises(UnknownChannel, match=r"'mial'.*known: .*mail"):
        outbox.send("mial", {})


@pytest.mark.parametrize(
    "payload",
    [
        {"text": "a\0b"},
        {"a\0": 1},
        {"half": "\ud800"},
        {"amount": float("nan")},
        {"set": {1, 2}},
    ],
)
def test_what_a_database_cannot_keep_is_refused_before_it_is_asked(payload: Any) -> None:
    with transaction.atomic():
        with pytest.raises((ValueError, TypeError)):
            outbox.send("mail", payload)
        Group.objects.create(name="the transaction goes on")


def test_text_that_only_looks_like_a_nul_is_kept() -> None:
    write("\\u0000 and \\\\u0000, 𝄞")
    dispatch()
    assert Mail.names() == ["\\u0000 and \\\\u0000, 𝄞"]


@pytest.mark.parametrize("name", ["destination", "aggregate"])
@pytest.mark.parametrize("value", ["x" * 256, "a\0b"])
def test_names_that_no_column_holds_are_refused(name: str, value: str) -> None:
    with transaction.atomic(), pytest.raises(ValueError, match=name):
        outbox.send("mail", {}, **{name: value})


def test_a_payload_may_hold_what_djangos_encoder_knows() -> None:
    number = uuid.uuid4()
    payload = {"name": "a", "at": datetime(2026, 3, 1, tzinfo=UTC), "id": number, "n": Decimal("1")}
    with transaction.atomic():
        outbox.send("mail", payload)
    dispatch()
    assert Mail.arrived[0].payload == {
        "name": "a",
        "at": "2026-03-01T00:00:00Z",
        "id": str(number),
        "n": "1",
    }


def test_two_channels_of_one_name_are_refused() -> None:
    def other(message: Any) -> outbox.Delivered:
        return outbox.Delivered()

    with pytest.raises(ImproperlyConfigured, match="Two channels are named 'mail'"):
        outbox.channel("mail")(other)
    outbox.channel("mail", attempts=3)  # not yet a channel
    assert mail is not None


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"at_once": 0}, {"lease": 0}, {"max_age": -1}, {"name": ""}],
)
def test_a_channel_without_bounds_is_refused(wrong: dict[str, Any]) -> None:
    name = wrong.pop("name", "bounded")
    with pytest.raises(ImproperlyConfigured):
        outbox.channel(name, **wrong)
