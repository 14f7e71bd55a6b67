"""What merchants are told, written in the transaction of the change it tells of.

Each enabled endpoint gets a message of its own: ``{"type", "timestamp", "data"}``, where ``data``
is what the API shows of the object at that moment. The order of messages is not kept: one that
cannot be delivered would hold back all that follow it. ``timestamp`` orders them.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from idempotency import outbox
from payments import serializers
from payments.models import Charge, Refund, Transfer
from payments.webhooks import endpoints

CHANNEL = "webhooks"


def charge(changed: Charge) -> None:
    """``charge.succeeded`` or ``charge.declined``, to its merchant."""
    data = serializers.ChargeRepresentation(changed).data
    _tell({changed.merchant_id}, f"charge.{changed.status}", data)


def refund(changed: Refund) -> None:
    """``refund.succeeded`` or ``refund.failed``, to the merchant of its charge."""
    data = serializers.RefundRepresentation(changed).data
    _tell({changed.charge.merchant_id}, f"refund.{changed.status}", data)


def transfer(created: Transfer) -> None:
    """``transfer.created``, to both sides."""
    data = serializers.TransferRepresentation(created).data
    _tell({created.sender_id, created.recipient_id}, "transfer.created", data)


def _tell(merchant_ids: set[int], kind: str, data: Any) -> None:
    """Write the messages. Raises outside a transaction, if there is anybody to be told."""
    listening = endpoints.listening(merchant_ids=merchant_ids)
    if not listening:
        return
    now = timezone.now().isoformat(timespec="milliseconds")
    payload = {"type": kind, "timestamp": now, "data": dict(data)}
    for endpoint in listening:
        outbox.send(CHANNEL, payload, destination=endpoint.destination)
