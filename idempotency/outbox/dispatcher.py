"""The dispatcher: claim, send, mark, until nothing is due.

::

    claim a batch ──▶ commit ──▶ send each in a thread ──▶ mark those that ended ──▶ commit
          ▲                                                        │
          └────────────── as soon as a thread is free ◀────────────┘

A crash before the mark's commit leaves the message claimed until its lease is over; then it is sent
again, under the same id. Any number of dispatchers may run at once.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError, router, transaction

from idempotency.client.breaker import BreakerOpen, Outcome
from idempotency.conf import settings
from idempotency.encryption import Unreadable
from idempotency.engine import LOST_RACE, sqlstate
from idempotency.models import OutboxMessage
from idempotency.outbox import channels, marks, signals
from idempotency.outbox.breakers import breaker_of
from idempotency.outbox.claims import Batch, Claimed, Lane, claim
from idempotency.outbox.marks import Finished, NotSent
from idempotency.outbox.messages import Dead, Delivered, Ending, Message, Retry, as_declared
from idempotency.outbox.senders import Inline, Senders
from idempotency.signals import send as send_signal

logger = logging.getLogger("idempotency")

#: Seconds between two claims while only sends that take long are under way.
POLL = 0.1
#: Seconds, at most, before a claim that lost a race is made again.
RACE_PAUSE = 0.02


@dataclass(slots=True)
class Tally:
    """What a dispatcher did."""

    delivered: int = 0
    retried: int = 0
    dead: int = 0


class Dispatcher:
    """Delivers the due messages of one database. Not for use by several threads.

    ``threads``: how many deliver, by default ``OUTBOX_THREADS``; 0: the calling one does.
    """

    def __init__(self, using: str | None = None, *, threads: int | None = None) -> None:
        self.using = using or router.db_for_write(OutboxMessage)
        self.tally = Tally()
        count = settings().outbox_threads if threads is None else threads
        self._senders = Senders(count, _send) if count else Inline(_send)
        #: Sent and not yet marked: kept while the database is away.
        self._unmarked: list[Finished] = []
        #: Destinations whose breaker is open, and until when (monotonic) it will be.
        self._resting: dict[Lane, float] = {}

    def run(self, stop: Callable[[], bool] = lambda: False) -> Tally:
        """Deliver until nothing is due and all is marked; or until ``stop`` says so, and then at
        once, with sends under way that ``finish`` waits for."""
        while not stop():
            more = self._claim()
            if self._senders.under_way or self._unmarked:
                self._mark(self._senders.collect(POLL))
            elif not more:
                break
        return self.tally

    def finish(self) -> Tally:
        """Wait for the sends under way, and mark them."""
        while self._senders.under_way or self._unmarked:
            self._mark(self._senders.collect(POLL))
        return self.tally

    @property
    def resting(self) -> list[Lane]:
        """Destinations whose breaker was open when it was last asked, and said to come later."""
        now = time.monotonic()
        self._resting = {lane: until for lane, until in self._resting.items() if until > now}
        return list(self._resting)

    def close(self) -> None:
        """Let the threads end."""
        self._senders.close()

    def _claim(self) -> bool:
        """Claim what there is room for, and start to send it. Whether there may be more."""
        room = self._senders.free
        if not room:
            return False
        try:
            with transaction.atomic(using=self.using, durable=True):
                batch = claim(self.using, channels.all_channels(), self._busy(), room)
                lost = [one for one in batch.claimed if one.lost]
                marks.note_lost(self.using, lost)
        except OperationalError as error:
            if sqlstate(error) not in LOST_RACE:
                raise
            time.sleep(random.uniform(0, RACE_PAUSE))  # noqa: S311  jitter
            return True
        self._start(batch)
        return batch.more or bool(batch.claimed)

    def _busy(self) -> dict[Lane, int]:
        """Destinations that get less than their share now: some is under way, or they rest."""
        busy = {
            lane: channels.find(lane.channel).at_once - count
            for lane, count in self._senders.lanes.items()
        }
        return busy | dict.fromkeys(self.resting, 0)

    def _start(self, batch: Batch) -> None:
        for claimed in batch.claimed:
            _tell(signals.message_claimed, claimed)
        for claimed in batch.claimed:
            self._senders.start(claimed)

    def _mark(self, finished: list[Finished]) -> None:
        self._unmarked += finished
        for one in finished:
            if isinstance(one.ending, NotSent):
                self._resting[one.claimed.lane] = time.monotonic() + one.ending.retry_after
        try:
            marked = marks.mark(self.using, self._unmarked)
        except OperationalError as error:
            if sqlstate(error) not in LOST_RACE:
                raise
            return  # they are marked in the next turn
        self._unmarked.clear()
        for one in marked:
            self._count(one)

    def _count(self, finished: Finished) -> None:
        match ending := marks.outcome(finished):
            case Delivered():
                self.tally.delivered += 1
            case Retry():
                self.tally.retried += 1
            case Dead():
                self.tally.dead += 1
                message = finished.claimed.message
                logger.error("message %s to %s is dead", message.id, message.channel)
            case NotSent():
                return
        _tell(signals.message_settled, finished.claimed, ending=ending, seconds=finished.seconds)


def _send(claimed: Claimed) -> Finished:
    """Deliver one message, if its destination's breaker lets it through. In a sender's thread."""
    breaker = breaker_of(claimed.channel, claimed.message.destination)
    try:
        admission = breaker.admit()
    except BreakerOpen as error:
        return Finished(claimed, NotSent(error.retry_after or 1.0), 0.0)
    began = time.monotonic()
    ending = _deliver(claimed)
    seconds = time.monotonic() - began
    breaker.settle(admission, _health(ending))
    _tell(signals.message_sent, claimed, ending=ending, seconds=seconds)
    return Finished(claimed, ending, seconds)


def _deliver(claimed: Claimed) -> Ending:
    if claimed.message.attempt > claimed.channel.attempts:
        return Dead(f"none of {claimed.channel.attempts} attempts ever said how it ended")
    if isinstance(claimed.message.payload, Unreadable):
        return Dead(f"its payload cannot be read: {claimed.message.payload}")
    deliver: Callable[[Message], object] = claimed.channel.deliver
    try:
        ending = deliver(claimed.message)
        if isinstance(ending, Delivered | Retry | Dead):
            # Here, because what the mark cannot write would end the dispatcher.
            return as_declared(ending)
    except Exception as error:
        logger.exception("message %s: %s failed", claimed.message.id, claimed.channel.name)
        return Retry(f"{type(error).__name__}: {error}")
    return Retry(f"the channel returned {ending!r} instead of Delivered, Retry or Dead")


def _health(ending: Ending) -> Outcome:
    """What an ending says of the destination: one that refuses a message is there."""
    if isinstance(ending, Delivered):
        return Outcome.SUCCESS
    return Outcome.FAILURE if isinstance(ending, Retry) else Outcome.NEUTRAL


def _tell(signal: Any, claimed: Claimed, **arguments: Any) -> None:
    send_signal(signal, Dispatcher, message=claimed.message, **arguments)
