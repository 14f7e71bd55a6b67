"""The nightly comparison: reads the gateway's books of a few days and ours, and keeps what differs.

Nothing is locked and both sides go on meanwhile, so each is asked about single movements, whatever
their time: our side by the reference that the gateway has, the gateway by that of a posting that
its list does not have. So neither clock has to be right, and nothing falls between two windows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import cast, get_args

from django.utils import timezone

from idempotency.operations import Done, Unknown
from payments.gateways.base import Gateway, Movement, Task, find
from payments.gateways.choice import get_gateway
from payments.models import storable
from payments.reconciliation import books, differences
from payments.reconciliation.books import Record
from payments.reconciliation.comparison import Difference, of_movement, of_posting

logger = logging.getLogger("payments.reconciliation")

#: What is younger may still be written down, here or there.
MARGIN = timedelta(hours=1)
#: What is pending for longer than that is not on its way any more; the jobs settle it sooner.
PENDING = timedelta(days=1)
#: How far back a comparison looks. Longer than ``PENDING`` and the time between two of them, so
#: that what was pending is looked at once more.
WINDOW = timedelta(days=3)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one comparison read, and what came of it."""

    since: datetime
    until: datetime
    movements: int = 0
    postings: int = 0
    #: Differences there are in that time, those that are new among them, and those that are gone.
    found: int = 0
    new: int = 0
    gone: int = 0
    #: Postings that the gateway was asked about and did not say.
    unsure: int = 0

    def __add__(self, day: Comparison) -> Comparison:
        """With what came of one of its days."""
        counts = ("movements", "postings", "found", "new", "gone", "unsure")
        return replace(self, **{name: getattr(self, name) + getattr(day, name) for name in counts})

    def __str__(self) -> str:
        return (
            f"{self.movements} movements and {self.postings} postings compared: {self.found} "
            f"differences, {self.new} of them new, {self.gone} gone, {self.unsure} not known"
        )


def compare_ledgers(*, since: datetime | None = None, until: datetime | None = None) -> Comparison:
    """Compare what moved in a time, by default the last three days but for the last hour.

    May run again, and twice at once: a difference is one row. Day by day, the newest first, each
    written before the next is read: what one that is cut off has read, it has kept. Raises
    ``MovementsUnknown``, having written nothing of that day, where the gateway's list cannot be
    read to its end.
    """
    until = until or timezone.now() - MARGIN
    since = since or until - WINDOW
    result = Comparison(since, until)
    end = until
    while end > since:
        begin = max(since, end - DAY)
        result += _compare_day(begin, end)
        end = begin
    return result


def _compare_day(since: datetime, until: datetime) -> Comparison:
    run = _Run(get_gateway(), since, until)
    run.read_theirs()
    run.read_ours()
    new, gone = differences.keep(run.found, since=since, until=until, unsure=run.unsure)
    day = Comparison(
        since, until, len(run.listed), run.postings, len(run.found), new, gone, len(run.unsure)
    )
    # At once: what is written is not new to the next run, and this one may be cut off.
    logger.log(logging.ERROR if new else logging.INFO, "%s", day)
    return day


class _Run:
    """One comparison under way."""

    def __init__(self, gateway: Gateway, since: datetime, until: datetime) -> None:
        self.gateway, self.since, self.until = gateway, since, until
        self.found: list[Difference] = []
        #: What the gateway listed: whose movement, and which.
        self.listed: set[tuple[str, str]] = set()
        self.postings = 0
        #: References that the gateway was asked about and did not say.
        self.unsure: set[str] = set()

    def read_theirs(self) -> None:
        """Find a record of ours for each movement of the gateway."""
        movements = iter(self.gateway.movements(since=self.since, until=self.until))
        while batch := list(islice(movements, books.BATCH)):
            batch = [_storable(movement) for movement in batch]
            self.listed.update((movement.reference, movement.id) for movement in batch)
            for kind in _TASKS:
                self._compare(kind, [it for it in batch if it.kind == kind])

    def _compare(self, kind: Task, movements: list[Movement]) -> None:
        ours = books.records(kind, {movement.reference for movement in movements})
        pending_since = timezone.now() - PENDING
        for movement in movements:
            difference = of_movement(movement, ours.get(movement.reference), pending_since)
            if difference is not None:
                self.found.append(difference)

    def read_ours(self) -> None:
        """Find a movement of the gateway for each posting of ours; after ``read_theirs``."""
        for kind in _TASKS:
            for batch in books.posted(kind, since=self.since, until=self.until):
                self.postings += len(batch)
                for record in batch:
                    if (record.reference, record.gateway_id) not in self.listed:
                        self._ask_about(record)

    def _ask_about(self, record: Record) -> None:
        """It may have moved before or after the time that was listed."""
        outcome = find(
            self.gateway, record.kind, reference=record.reference, charge=record.charge_gateway_id
        )
        if isinstance(outcome, Unknown):
            self.unsure.add(record.reference)
        elif not isinstance(outcome, Done):
            self.found.append(of_posting(record))


def _storable(movement: Movement) -> Movement:
    """As our rows can hold it: the account may be shared, and others name things as they like."""
    return replace(
        movement, id=storable(movement.id, 255), reference=storable(movement.reference, 255)
    )


_TASKS = cast("tuple[Task, ...]", get_args(Task))
