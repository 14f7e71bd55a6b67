"""Claiming: which messages this dispatcher may send now. At most one dispatcher holds a message.

A message may be claimed when it is due (its back-off is over, or the lease of a sender that never
said how it went), when its destination has room, and when no earlier message of its aggregate is
unfinished. Destinations take turns, so that a long queue of one does not keep the others waiting.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Exists, F, OuterRef, QuerySet

from idempotency import encryption
from idempotency.encryption import Unreadable
from idempotency.models import MessageState, OutboxMessage
from idempotency.outbox.channels import Channel
from idempotency.outbox.messages import Message
from idempotency.stores import clock

#: Due messages of one destination that a claim looks at.
WINDOW = 100
#: What a dispatcher may claim.
UNSENT = (MessageState.PENDING, MessageState.SENDING)
#: What holds back the later messages of its aggregate.
UNFINISHED = (*UNSENT, MessageState.DEAD)


class Lane(NamedTuple):
    """What has a share of the dispatcher, and a breaker, of its own."""

    channel: str
    destination: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that this dispatcher may send. ``owner`` fences every mark of it."""

    message: Message
    channel: Channel
    owner: uuid.UUID
    #: Since it was written or re-sent, by the database's clock.
    age: timedelta
    #: An earlier claim never said how its send ended.
    lost: bool

    @property
    def lane(self) -> Lane:
        return Lane(self.channel.name, self.message.destination)


@dataclass(frozen=True, slots=True)
class Batch:
    claimed: list[Claimed]
    #: There may be more to claim, although the batch is not full.
    more: bool = False


def claim(using: str, channels: Sequence[Channel], busy: Mapping[Lane, int], most: int) -> Batch:
    """Claim up to ``most`` messages of these channels, by one conditional write each.

    ``busy``: lanes that get less than their channel's ``at_once``, and how many they get.
    """
    by_name = {channel.name: channel for channel in channels}
    if connections[using].vendor == "postgresql":
        return _claim_at_once(using, by_name, busy, most)
    return claim_portably(using, by_name, busy, most)


def _opened(payload: Any) -> Any:
    """The payload as it was given; else why nobody can read it, which is no reason to claim none of
    the others."""
    try:
        return encryption.open_json(payload)
    except Unreadable as error:
        return error


# PostgreSQL: one statement


def _claim_at_once(
    using: str, channels: Mapping[str, Channel], busy: Mapping[Lane, int], most: int
) -> Batch:
    owner = uuid.uuid4()
    parameters: dict[str, Any] = {
        "channels": list(channels),
        "leases": [channel.lease for channel in channels.values()],
        "at_once": [channel.at_once for channel in channels.values()],
        "busy_channels": [lane.channel for lane in busy],
        "busy_destinations": [lane.destination for lane in busy],
        "rooms": list(busy.values()),
        "most": most,
        "window": WINDOW,
        "owner": owner,
        "moment": clock.frozen(),
    }
    with connections[using].cursor() as cursor:
        cursor.execute(_statement(), parameters)
        rows = [_Row(*row) for row in cursor.fetchall()]
    claimed = [row.claimed(channels, owner) for row in rows if row.sequence is not None]
    return Batch(claimed, more=any(row.moved for row in rows))


@cache
def _statement() -> str:
    return (Path(__file__).parent / "claim.sql").read_text()


class _Row(NamedTuple):
    """One row of claim.sql. With nothing claimed there is one, all null but ``moved``."""

    sequence: int | None
    message_id: uuid.UUID
    channel: str
    destination: str
    aggregate: str
    payload: str
    attempt: int
    created_at: datetime
    queued_at: datetime
    was: str
    now: datetime
    moved: int

    def claimed(self, channels: Mapping[str, Channel], owner: uuid.UUID) -> Claimed:
        message = Message(
            id=self.message_id,
            sequence=self.sequence or 0,
            channel=self.channel,
            destination=self.destination,
            aggregate=self.aggregate,
            payload=_opened(json.loads(self.payload)),
            attempt=self.attempt,
            created_at=self.created_at,
        )
        lost = self.was == MessageState.SENDING
        return Claimed(message, channels[self.channel], owner, self.now - self.queued_at, lost)


# Every other database: look, then write conditionally


def claim_portably(
    using: str, channels: Mapping[str, Channel], busy: Mapping[Lane, int], most: int
) -> Batch:
    """The same by the ORM. Looking may be outdated by the time of writing; the write is not."""
    owner = uuid.uuid4()
    found = _candidates(using, channels, busy)[:most]
    claimed = [
        _claimed(row, channels[row.channel], owner)
        for row in found
        if _take(using, row, channels[row.channel].lease, owner)
    ]
    return Batch(claimed, more=len(claimed) < len(found))


def _candidates(using: str, channels: Mapping[str, Channel], busy: Mapping[Lane, int]) -> list[Any]:
    due = claimable(using).filter(channel__in=channels)
    lanes = due.order_by().values_list("channel", "destination").distinct()
    turns: list[tuple[int, Any]] = []
    for lane in (Lane(*lane) for lane in lanes):
        room = busy.get(lane, channels[lane.channel].at_once)
        rows = due.filter(channel=lane.channel, destination=lane.destination)
        turns += enumerate(rows.order_by("due_at", "sequence")[:room])
    turns.sort(key=lambda turn: (turn[0], turn[1].due_at))
    return [row for _, row in turns]


def claimable(using: str) -> QuerySet[Any]:
    """What is due and not held back, with the database's time beside each row."""
    messages = OutboxMessage.objects.using(using)
    earlier = messages.filter(
        channel=OuterRef("channel"),
        destination=OuterRef("destination"),
        aggregate=OuterRef("aggregate"),
        state__in=UNFINISHED,
        sequence__lt=OuterRef("sequence"),
    ).exclude(aggregate="")
    due = messages.filter(~Exists(earlier), state__in=UNSENT, due_at__lte=clock.now())
    return due.annotate(now=clock.now())


def _take(using: str, row: Any, lease: timedelta, owner: uuid.UUID) -> bool:
    # Who holds it, or held it, is as it was seen; a predecessor that was finished stays so.
    mine = OutboxMessage.objects.using(using).filter(
        pk=row.pk, state=row.state, owner=row.owner, due_at__lte=clock.now()
    )
    taken = mine.update(
        state=MessageState.SENDING,
        owner=owner,
        attempt=F("attempt") + 1,
        due_at=clock.after(lease),
    )
    return taken == 1


def _claimed(row: Any, channel: Channel, owner: uuid.UUID) -> Claimed:
    message = Message(
        id=row.message_id,
        sequence=row.pk,
        channel=row.channel,
        destination=row.destination,
        aggregate=row.aggregate,
        payload=_opened(row.payload),
        attempt=row.attempt + 1,
        created_at=row.created_at,
    )
    lost = row.state == MessageState.SENDING
    return Claimed(message, channel, owner, row.now - row.queued_at, lost)
