"""What a person may do to a message: the service behind the admin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import router, transaction

from idempotency.models import DeliveryEvent, DeliveryKind, MessageState, OutboxMessage
from idempotency.outbox import marks, nudging
from idempotency.stores import clock

__all__ = ["DISCARDABLE", "RESENDABLE", "Seen", "discard", "resend"]

#: A delivered one, too: its receiver may have lost it. Not what is under way: its sender decides.
RESENDABLE = (MessageState.DEAD, MessageState.DELIVERED, MessageState.DISCARDED)
DISCARDABLE = (MessageState.DEAD, MessageState.PENDING)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the operator's decision rests on; when it has changed, there is no decision."""

    state: str
    attempt: int
    #: Another one after each re-send.
    queued_at: datetime

    @classmethod
    def of(cls, message: OutboxMessage) -> Seen:
        """How a message stands on the page that is being shown."""
        return cls(message.state, message.attempt, message.queued_at)


def resend(sequence: int, *, seen: Seen, actor: str, reason: str, using: str | None = None) -> bool:
    """Send a message again, under its id, with all attempts before it.

    A dead one takes its place in the order of its aggregate, which waited for it; one that was
    delivered or discarded comes after those that were sent meanwhile. False, and nothing written,
    when it does not stand as it was seen any more, or is not to be re-sent (``RESENDABLE``).
    """
    now = clock.now()
    changes = {
        "state": MessageState.PENDING,
        "attempt": 0,
        "due_at": now,
        "queued_at": now,
        "settled_at": None,
    }
    return _write(sequence, seen, RESENDABLE, changes, DeliveryKind.RESENT, (actor, reason), using)


def discard(
    sequence: int, *, seen: Seen, actor: str, reason: str, using: str | None = None
) -> bool:
    """Give a message up for good: it will not be sent, and no longer holds its aggregate.

    False, and nothing written, when it does not stand as it was seen any more, or is not to be
    discarded (``DISCARDABLE``).
    """
    changes = {"state": MessageState.DISCARDED, "settled_at": clock.now()}
    return _write(
        sequence, seen, DISCARDABLE, changes, DeliveryKind.DISCARDED, (actor, reason), using
    )


def _write(
    sequence: int,
    seen: Seen,
    allowed: tuple[MessageState, ...],
    changes: dict[str, object],
    kind: DeliveryKind,
    why: tuple[str, str],
    using: str | None,
) -> bool:
    alias = using or router.db_for_write(OutboxMessage)
    messages = OutboxMessage.objects.using(alias)
    actor, reason = why
    with transaction.atomic(using=alias):
        standing = messages.filter(
            pk=sequence, state=seen.state, attempt=seen.attempt, queued_at=seen.queued_at
        )
        if not standing.filter(state__in=allowed).update(**changes):
            return False
        DeliveryEvent.objects.using(alias).create(
            message_id=sequence,
            kind=kind,
            attempt=seen.attempt,
            at=clock.now(),
            actor=actor[:150],
            detail=reason[:1000],
        )
        message = messages.get(pk=sequence)
        marks.wake_next(alias, message.channel, message.destination, message.aggregate)
        nudging.nudge_on_commit(alias)
    return True
