"""Marking how sends ended. Every mark names the claim it belongs to: a dispatcher whose lease ran
out while it sent changes nothing any more."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import DurationField, F, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Least

from idempotency.client.retry_after import at_least
from idempotency.models import DeliveryEvent, DeliveryKind, MessageState, OutboxMessage
from idempotency.outbox.claims import UNFINISHED, Claimed
from idempotency.outbox.messages import Dead, Delivered, Ending, Retry
from idempotency.stores import clock

logger = logging.getLogger("idempotency")

#: Seconds. A longer ``retry_after`` is cut to it, so that nobody can park a message for years.
LONGEST_WAIT = 24 * 3600.0
#: Seconds by which those who were asked to wait as long are spread.
SPREAD = 1.0
#: The least that two times in the database differ by.
TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NotSent:
    """The breaker refused it: nothing was sent, and the attempt does not count."""

    retry_after: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A claimed message, and what came of it."""

    claimed: Claimed
    ending: Ending | NotSent
    seconds: float


def mark(using: str, finished: Iterable[Finished]) -> list[Finished]:
    """Write down how these ended, in one transaction; return those that were still ours."""
    with transaction.atomic(using=using, durable=True):
        ours = [one for one in finished if _mark(using, one)]
        events = [_event(one) for one in ours if not isinstance(one.ending, NotSent)]
        DeliveryEvent.objects.using(using).bulk_create(events)
    return ours


def note_lost(using: str, claimed: Iterable[Claimed]) -> None:
    """Write into the history of each that its attempt before this one was cut short."""
    DeliveryEvent.objects.using(using).bulk_create(
        DeliveryEvent(
            message_id=one.message.sequence,
            kind=DeliveryKind.LOST,
            attempt=one.message.attempt - 1,
            at=clock.now(),
        )
        for one in claimed
    )


def wake_next(using: str, channel: str, destination: str, aggregate: str) -> None:
    """Make the next message of the aggregate due now: a claim may have put it off while it had to
    wait for its predecessor."""
    if not aggregate:
        return
    messages = OutboxMessage.objects.using(using)
    unfinished = messages.filter(
        channel=channel, destination=destination, aggregate=aggregate, state__in=UNFINISHED
    )
    first = unfinished.order_by("sequence").values("sequence")[:1]
    # Written where it is due already, too: by another time a claim that is about to put it off sees
    # that its turn has come. It keeps its place. Tried before, it is in a back-off of its own.
    messages.filter(sequence__in=first, state=MessageState.PENDING, attempt=0).update(
        due_at=Least(F("due_at"), clock.now()) - Value(TICK, output_field=DurationField())
    )


def _mark(using: str, finished: Finished) -> bool:
    claimed, message = finished.claimed, finished.claimed.message
    mine = OutboxMessage.objects.using(using).filter(
        pk=message.sequence, owner=claimed.owner, state=MessageState.SENDING
    )
    if not mine.update(owner=None, **_changes(finished)):
        logger.warning(
            "message %s: attempt %s outlived its lease, so another one was or will be made",
            message.id,
            message.attempt,
        )
        return False
    if isinstance(finished.ending, Delivered):
        wake_next(using, message.channel, message.destination, message.aggregate)
    return True


def _changes(finished: Finished) -> dict[str, Any]:
    match outcome(finished):
        case Delivered():
            return _settled(MessageState.DELIVERED, "")
        case Dead(reason):
            return _settled(MessageState.DEAD, reason)
        case Retry(reason, retry_after):
            wait = _wait(finished.claimed, retry_after)
            return _pending(wait) | {"last_error": _text(reason, 500)}
        case NotSent(retry_after):
            return _pending(retry_after) | {"attempt": F("attempt") - 1}


def outcome(finished: Finished) -> Ending | NotSent:
    """The ending, where a message that may not be tried again is given up."""
    ending, claimed = finished.ending, finished.claimed
    if not isinstance(ending, Retry):
        return ending
    if claimed.message.attempt >= claimed.channel.attempts:
        return Dead(f"given up after {claimed.message.attempt} attempts: {ending.reason}")
    if claimed.age >= claimed.channel.max_age:
        return Dead(f"given up after {claimed.age}: {ending.reason}")
    return ending


def _wait(claimed: Claimed, retry_after: float | None) -> float:
    waits = claimed.channel.backoff.waits()
    drawn = next(itertools.islice(waits, claimed.message.attempt - 1, None))
    asked = None if retry_after is None else min(max(retry_after, 0.0), LONGEST_WAIT)
    return at_least(drawn, asked, spread=SPREAD)


def _pending(wait: float) -> dict[str, Any]:
    due: Combinable = clock.after(timedelta(seconds=wait))
    return {"state": MessageState.PENDING, "due_at": due}


def _settled(state: MessageState, error: str) -> dict[str, Any]:
    return {"state": state, "settled_at": clock.now(), "last_error": _text(error, 500)}


_KINDS = {
    Delivered: DeliveryKind.DELIVERED,
    Retry: DeliveryKind.FAILED,
    Dead: DeliveryKind.DEAD,
}


def _event(finished: Finished) -> DeliveryEvent:
    ending = outcome(finished)
    assert not isinstance(ending, NotSent)  # noqa: S101  for the type checker
    detail = ending.detail if isinstance(ending, Delivered) else ending.reason
    return DeliveryEvent(
        message_id=finished.claimed.message.sequence,
        kind=_KINDS[type(ending)],
        attempt=finished.claimed.message.attempt,
        at=clock.now(),
        seconds=finished.seconds,
        detail=_text(detail, 1000),
    )


def _text(words: str, limit: int) -> str:
    """What any database can keep of another side's words: no NUL, no half of a surrogate pair."""
    return words[:limit].replace("\0", "\ufffd").encode(errors="replace").decode()
