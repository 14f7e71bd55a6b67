"""Messages that arrive more than once: the effect of each happens once.

>>> from idempotency.inbox import consume_once
>>> def book():
...     payment.mark_paid()
...     return {"payment": payment.id}
>>> consume_once("gateway", event["id"], book, content=raw_body).first     # doctest: +SKIP
True

The other end of ``idempotency.outbox``, and of every queue and webhook that delivers at least once.
It stands on the engine and the table of keys: the id is a key of the route ``inbox:<source>``, the
effect and its record are one transaction, and a consumer that died is succeeded when its lease is
over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from idempotency.conf import duration, settings
from idempotency.core.errors import ForceFailed, IdempotencyError, KeyInUse, KeyReused
from idempotency.core.keys import MAX_LENGTH, Scope, length_prefixed
from idempotency.core.policies import Policy, Verdict
from idempotency.core.responses import RecordedResponse
from idempotency.engine import Answer, Engine, Handled, KeyedRequest
from idempotency.execution import Execution
from idempotency.operations import Operation, Reply
from idempotency.stores import get_store

__all__ = [
    "Consumed",
    "IdempotencyError",
    "MessageEnded",
    "MessageInProgress",
    "MessageReused",
    "consume_once",
]

#: What the routes of messages begin with.
ROUTE = "inbox:"

#: The status of a message's result; an operator's answer has another.
_DONE = 200

_CONTENT_DOMAIN = b"idempotency/inbox-content/1"


class MessageInProgress(KeyInUse):
    """Somebody else consumes it right now, or died while doing so: have it delivered again, after
    ``retry_after`` seconds."""

    default_detail = "This message is being consumed at the moment. Deliver it again later."


class MessageReused(KeyReused):
    """The id was consumed with other content. Repeating it makes no sense."""

    default_detail = "This message id was used for other content. Give every message its own id."


class MessageEnded(ForceFailed):
    """An operator ended it for good before it had its effect. Repeating it makes no sense."""

    default_detail = "An operator ended this message, and it will not be consumed."


@dataclass(frozen=True, slots=True)
class Consumed:
    """The message has had its effect. ``first``: just now, and not at an earlier delivery."""

    first: bool
    #: What the work returned, as JSON gives it back: the same for every delivery.
    result: Any


def consume_once(
    source: str,
    message_id: str,
    work: Callable[[], Any],
    *,
    tenant: str = "",
    content: bytes = b"",
    ttl: float | timedelta | None = None,
    lease: float | timedelta | None = None,
    using: str | None = None,
) -> Consumed:
    """Run ``work`` for the first delivery of a message, and return its result to all later ones.

    ``work`` runs in one transaction with the record that it ran, so both are there or neither;
    what it raises is raised here, after everything was rolled back, and the next delivery runs it
    again. It returns JSON, at most ``MAX_RESPONSE_BYTES`` of it. It must not call others (there is
    no taking that back): have it ``outbox.send`` what is to follow.

    ``source`` names the sender, in your code's words and not in the message's; the id (1 to 255
    characters) is unique within source and ``tenant``. ``content`` tells two messages under one id
    apart: the raw body, where there is one. The id is remembered for ``ttl`` (seconds or a
    timedelta; by default ``RETENTION``), which has to outlast the sender's redeliveries. ``lease``
    (by default ``LEASE``) is how long the work may take.

    Raises ``MessageInProgress`` while another delivery of it is at work, ``MessageReused`` for
    other content under the id, ``MessageEnded`` where an operator ended it, and further
    ``IdempotencyError``\\ s: one whose ``retry`` is ``"same_key"`` asks for the message to be
    delivered again. Acknowledge a message only when this has returned.
    """
    if not 1 <= len(message_id) <= MAX_LENGTH:
        raise ValueError(f"a message id has 1 to {MAX_LENGTH} characters: {message_id[:40]!r}…")
    request = KeyedRequest(
        scope=Scope(f"{ROUTE}{source}", tenant, message_id),
        policy=_policy(ttl, lease),
        fingerprint=lambda version: _fingerprint(content),
    )
    try:
        answer = Engine(get_store(using)).run(request, _Consumption(work))
    except KeyInUse as error:
        raise MessageInProgress(retry_after=error.retry_after) from error
    except KeyReused as error:
        raise MessageReused from error
    if not isinstance(answer, Answer):
        return Consumed(first=True, result=answer.response)
    if answer.recorded.status != _DONE:
        raise MessageEnded
    return Consumed(first=not answer.replayed, result=json.loads(answer.recorded.body or b"null"))


class _Consumption:
    """The consumer's work as the engine sees it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def handle(self, execution: Execution | None) -> Handled[Any]:
        body = json.dumps(self._work(), cls=DjangoJSONEncoder, separators=(",", ":")).encode()
        if len(body) > (limit := settings().max_response_bytes):
            raise ValueError(
                f"The result of a message has {len(body)} bytes and only {limit} are kept "
                "(MAX_RESPONSE_BYTES). Return less: what later deliveries need."
            )
        # Read back, so that the first delivery gets what the later ones will.
        recorded = RecordedResponse(_DONE, (("Content-Type", "application/json"),), body)
        return Handled(json.loads(body), recorded)

    def prepare(self, operation: Operation) -> dict[str, Any] | Reply:
        raise TypeError("a message cannot be consumed by an Operation")

    def verdict_of(self, error: Exception) -> Verdict:
        # Nobody corrects a message and sends it again under its id.
        return Verdict.FAIL


def _policy(ttl: float | timedelta | None, lease: float | timedelta | None) -> Policy:
    chosen = settings()
    return Policy(
        required=True,
        methods=frozenset(),
        ttl=chosen.retention if ttl is None else duration(ttl, "ttl"),
        lease=chosen.lease if lease is None else duration(lease, "lease"),
        scope="route",
        body_field=None,
        busy="reject",
        wait=timedelta(0),
        fingerprint="raw",
        fingerprint_exclude=frozenset(),
        stored_statuses=None,
        max_response_bytes=chosen.max_response_bytes,
        key_min_length=1,
        key_uuid_only=False,
    )


def _fingerprint(content: bytes) -> bytes:
    """Of no request and so of no version of the rules for requests: the same in each."""
    return hashlib.sha256(length_prefixed(_CONTENT_DOMAIN, content)).digest()
