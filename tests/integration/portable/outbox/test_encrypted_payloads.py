"""What messages carry is encrypted at rest, like stored bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import transaction

from idempotency import encryption, outbox
from idempotency.admin.answers import show_json
from idempotency.models import OutboxMessage
from idempotency.outbox.dispatcher import Dispatcher
from tests.integration.portable.outbox.mail import Mail

pytestmark = pytest.mark.django_db

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


def send(name: str) -> OutboxMessage:
    with transaction.atomic():
        message_id = outbox.send("mail", {"name": name})
    return OutboxMessage.objects.get(message_id=message_id)


def test_what_a_message_carries_is_encrypted_until_it_is_delivered(
    configure: Any, each_claim: str
) -> None:
    configure(ENCRYPTION_KEYS=[OLD])
    message = send("Jo Ann")
    assert "Jo Ann" not in json.dumps(message.payload)
    assert '"name": "Jo Ann"' in show_json(message.payload)
    configure(ENCRYPTION_KEYS=[NEW, OLD])
    assert Dispatcher(threads=0).run().delivered == 1
    assert Mail.arrived[0].payload == {"name": "Jo Ann"}


def test_a_message_that_nobody_can_read_holds_up_no_other(configure: Any, each_claim: str) -> None:
    configure(ENCRYPTION_KEYS=[OLD])
    lost = send("lost")
    configure(ENCRYPTION_KEYS=[NEW])
    send("Jo Ann")
    tally = Dispatcher(threads=0).run()
    assert (tally.delivered, tally.dead) == (1, 1)
    assert Mail.arrived[0].payload == {"name": "Jo Ann"}
    lost.refresh_from_db()
    assert "its payload cannot be read: It was encrypted by the key" in lost.last_error


@pytest.mark.parametrize("keys", [[], [NEW]], ids=["in clear", "encrypted"])
def test_a_payload_that_looks_encrypted_is_refused(configure: Any, keys: list[str]) -> None:
    configure(ENCRYPTION_KEYS=keys)
    forged = {encryption.SEALED_MEMBER: ["0badc0de", "token"]}
    with transaction.atomic(), pytest.raises(ValueError, match="idempotency:sealed"):
        outbox.send("mail", forged)
    assert not OutboxMessage.objects.exists()
