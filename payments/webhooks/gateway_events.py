"""What the gateway tells us: recorded at once, settled afterwards.

::

    POST ──▶ signature ──▶ inbox and outbox, one transaction ──▶ 204
                                        │
                                        └──▶ channel `gateway-events` ──▶ settle, or later again

204 means recorded. Settling comes second, because it may have to wait: for the request that is
still at it, for the gateway's answer to a question, for an object that is not there yet. Were the
event refused until then, its sender would have to be as patient as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rest_framework.exceptions import ValidationError

from idempotency import outbox
from idempotency.inbox import Consumed, consume_once
from payments import parsers
from payments.gateways.choice import get_gateway
from payments.gateways.events import Ended, Event, ReadsEvents
from payments.webhooks import conf, signatures

CHANNEL, SOURCE = "gateway-events", "gateway"
#: Bytes. An event holds one entry of the gateway's ledger.
MAX_EVENT = 64 * 1024
#: Events that end a charge or a refund -> what is ended, and whether money moved.
ENDINGS = {
    "charge.succeeded": ("charge", True),
    "charge.declined": ("charge", False),
    "refund.succeeded": ("refund", True),
    "refund.failed": ("refund", False),
}


def receive(*, body: bytes, headers: Mapping[str, str]) -> Consumed:
    """Record an event, once. Raises `NotSigned`, `ParseError`, `ValidationError`, and what
    `consume_once` raises; nothing is recorded then."""
    event = _checked(body, headers)
    return consume_once(SOURCE, event.id, lambda: _record(event.ended), content=event.content)


def _checked(body: bytes, headers: Mapping[str, str]) -> Event:
    """The event, when it is the gateway's: by its own scheme, or by Standard Webhooks."""
    gateway = get_gateway()
    if isinstance(gateway, ReadsEvents):
        return gateway.read_event(body=body, headers=headers)
    message_id = signatures.verified_id(body, headers, conf.gateway_secrets())
    return Event(id=message_id, ended=read(body), content=body)


def read(body: bytes) -> Ended | None:
    """What an event says of ours; None for what is none of our business."""
    event = parsers.loads(body)
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise ValidationError({"type": ["An event has a type."]})
    ending = ENDINGS.get(event["type"])
    data = event.get("data")
    if ending is None:
        return None
    if not isinstance(data, dict):
        raise ValidationError({"data": ["An event of this type has data."]})
    if data.get("reference") is None:
        # Made at the gateway by hand: the nightly comparison lists it.
        return None
    texts = {name: _text(data, name) for name in ("id", "reference", "currency")}
    return Ended(
        kind=ending[0],
        moved=ending[1],
        amount=_amount(data),
        charge=_text(data, "charge") if ending[0] == "refund" else "",
        code="" if ending[1] else _text(data, "code"),
        **texts,
    )


def _record(ended: Ended | None) -> dict[str, str]:
    """In the transaction that records the event."""
    if ended is None:
        return {}
    return {"message": str(outbox.send(CHANNEL, asdict(ended), destination=SOURCE))}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise ValidationError({"data": [f"{name} is a text of 1 to 255 characters."]})
    return value


def _amount(data: Mapping[str, Any]) -> int:
    amount = data.get("amount")
    if type(amount) is not int:
        raise ValidationError({"data": ["amount is a whole number of minor units."]})
    return amount
