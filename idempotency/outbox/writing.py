"""Writing a message, in the transaction of the work that it tells of."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, router

from idempotency import encryption
from idempotency.core.keys import length_prefixed
from idempotency.models import OutboxMessage
from idempotency.outbox import channels, nudging
from idempotency.stores import clock

_LOCK_DOMAIN = b"idempotency/outbox-aggregate/1"
# A NUL, after an even number of backslashes: PostgreSQL's jsonb cannot hold one.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def send(
    channel: str,
    payload: Any,
    *,
    destination: str = "",
    aggregate: str = "",
    using: str | None = None,
) -> uuid.UUID:
    """Write a message, to be delivered once the transaction has committed; return its id.

    ``payload`` is JSON, with what Django's encoder adds (dates, UUIDs, decimals). ``destination``
    says who gets it (255 characters at most, like ``aggregate``): each has its own share of the
    dispatcher, and its own breaker. With an ``aggregate``, what is sent to this destination about
    it arrives in the order of the commits; other senders of the same aggregate wait here until this
    transaction ends. Two transactions that send for several aggregates in different orders may
    deadlock: sort them.

    Raises ``RuntimeError`` outside a transaction, ``UnknownChannel``, and ``ValueError`` for what
    cannot be stored; none of these writes anything.
    """
    known = channels.find(channel)
    alias = using or router.db_for_write(OutboxMessage)
    _demand_transaction(alias)
    _demand_storable(payload, destination, aggregate)
    if aggregate:
        _queue_for(alias, known.name, aggregate)
    message_id, now = uuid.uuid4(), clock.now()
    OutboxMessage.objects.using(alias).create(
        message_id=message_id,
        channel=known.name,
        destination=destination,
        aggregate=aggregate,
        payload=encryption.seal_json(payload, DjangoJSONEncoder),
        due_at=now,
        created_at=now,
        queued_at=now,
    )
    nudging.nudge_on_commit(alias)
    return message_id


def _demand_transaction(using: str) -> None:
    # A TestCase's own transaction would hide what fails in production.
    blocks = connections[using].atomic_blocks
    if all(getattr(block, "_from_testcase", False) for block in blocks):
        raise RuntimeError(
            "outbox.send() needs a transaction: without one the message would be sent although the "
            "work may fail. Call it inside transaction.atomic()."
        )


def _demand_storable(payload: Any, destination: str, aggregate: str) -> None:
    for name, value in (("destination", destination), ("aggregate", aggregate)):
        if len(value) > 255 or "\0" in value:
            raise ValueError(f"{name} has at most 255 characters, and no NUL: {value[:40]!r}…")
    text = json.dumps(payload, cls=DjangoJSONEncoder, ensure_ascii=False, allow_nan=False)
    if _NUL.search(text):
        raise ValueError("The payload holds a NUL character, which a database cannot keep.")
    text.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError


def _queue_for(using: str, channel: str, aggregate: str) -> None:
    """Let the writers of one aggregate commit one after another, so that the order of sequence
    numbers is that of commits. Elsewhere than on PostgreSQL there is one writer at a time anyway.

    Without the destination: an event for three destinations then takes one lock and not three,
    which two transactions could take in different orders.
    """
    if connections[using].vendor != "postgresql":
        return
    digest = hashlib.sha256(length_prefixed(_LOCK_DOMAIN, channel.encode(), aggregate.encode()))
    number = int.from_bytes(digest.digest()[:8], signed=True)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
