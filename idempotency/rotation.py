"""Rotating the key of encryption: seal under the one that writes now what another one sealed, or
none, so that the others can be removed.

Beside traffic: rows are read and written one by one, and a write names what was read. An answer
that was erased meanwhile stays erased, and an operation that somebody runs is left to him, whose
lease a conflict would cost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from idempotency import encryption
from idempotency.conf import settings
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.encryption import Unreadable
from idempotency.jobs import Result, Run, run_job
from idempotency.models import IdempotencyKey, OutboxMessage, Proposal, StoredResponse
from idempotency.stores import clock
from idempotency.stores.ranges import answers_by_day

logger = logging.getLogger("idempotency")

#: Answers that are written in one transaction: nobody but an erasure waits for it.
STEP = 100


def rotate_encryption(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Seal anew what is not under the first of ``ENCRYPTION_KEYS``; with ``None`` in its place,
    open it. Works until all is done; cut short, it can be run again.

    Every process must write with that key by then. ``failed`` is what nobody can read, because its
    key is not there; ``more`` is an operation that ran meanwhile. The details say what was found
    under which key.
    """
    return run_job("rotate_encryption", _rotate, using, dry_run, bounded=False)


def _rotate(run: Run) -> None:
    rotation = _Rotation(run, encryption.writing_key())
    rotation.answers()
    rotation.operations()
    rotation.values("messages", OutboxMessage.objects.using(run.using), "payload")
    proposals = Proposal.objects.using(run.using).exclude(result={})
    rotation.values("proposals", proposals, "result")
    rotation.tell()


@dataclass(slots=True)
class _Rotation:
    """One run, and what it found under another key than the one that writes."""

    run: Run
    writer: str | None
    #: What is to be sealed anew, and what nobody can read; by its kind and its key.
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Operations that somebody runs.
    held: int = 0

    def answers(self) -> None:
        """By day, and within it by key: the primary key, so that a walk leads through it."""
        for of_day in answers_by_day(self.run.using):
            rows = of_day.filter(body__isnull=False)
            for batch in _batches(rows, "headers"):
                due = [pk for pk, head in batch if self._is_due("answers", encryption.key_of(head))]
                for start in range(0, len(due), STEP):
                    self._answers(rows, due[start : start + STEP])

    def operations(self) -> None:
        """Those that nobody runs. One that somebody runs is over before its key can be removed."""
        idle = Q(state=State.IN_DOUBT.value) | Q(lease_expires_at__lte=clock.now())
        rows = IdempotencyKey.objects.using(self.run.using).filter(
            state__in=[State.PROCESSING.value, State.IN_DOUBT.value], context__has_key="context"
        )
        for batch in _batches(rows, "context"):
            for pk, kept in batch:
                sealed = self._sealed("operations", kept["context"])
                if sealed is None:
                    continue
                anew = rows.filter(idle, pk=pk, context=kept)
                if not anew.update(context={**kept, "context": sealed}):
                    self.held += rows.filter(pk=pk).exists()

    def values(self, what: str, rows: QuerySet[Any], column: str) -> None:
        """A column of JSON. One that was emptied meanwhile stays empty."""
        for batch in _batches(rows, column):
            for pk, value in batch:
                sealed = self._sealed(what, value)
                if sealed is not None:
                    rows.filter(pk=pk, **{column: value}).update(**{column: sealed})

    def tell(self) -> None:
        """Give the run its tally."""
        run = self.run
        run.done, run.failed = self.found.total() - self.held, self.lost.total()
        run.more = bool(self.held)
        found = sorted((+self.found).items())
        run.details += [f"{n} {what} {where}" for (what, where), n in found]
        run.details += [
            f"{n} {what} {where}, which nobody can read: see the log"
            for (what, where), n in sorted(self.lost.items())
        ]
        if self.held:
            run.details.append(f"{self.held} operations are running: run this again")
        if not run.details:
            where = "in clear" if self.writer is None else f"under {self.writer}"
            run.details.append(f"all is {where}: no other key is needed")

    def _answers(self, rows: QuerySet[StoredResponse], pks: list[int]) -> None:
        with transaction.atomic(using=self.run.using):
            for pk in pks:
                self._answer(rows.filter(pk=pk))

    def _answer(self, row: QuerySet[StoredResponse]) -> None:
        found = row.first()
        if found is None or found.body is None:
            return  # erased, or dropped with its day
        headers = tuple((name, value) for name, value in found.headers)
        stored = RecordedResponse(found.status, headers, bytes(found.body))
        try:
            sealed = encryption.seal(encryption.unseal(stored))
        except Unreadable as error:
            self._give_up("answers", encryption.key_of(headers), error)
            return
        anew = [list(pair) for pair in sealed.headers]
        # Not of a body that was erased since: the row is one that has a body.
        row.update(headers=anew, body=sealed.body)

    def _sealed(self, what: str, value: Any) -> Any:
        """JSON under the key that writes; None when it is already, or is not to be."""
        key = encryption.key_of_json(value)
        if not self._is_due(what, key):
            return None
        try:
            return encryption.seal_json(encryption.open_json(value))
        except Unreadable as error:
            self._give_up(what, key, error)
            return None

    def _is_due(self, what: str, key: str | None) -> bool:
        if key == self.writer:
            return False
        readable = encryption.is_readable(key)
        (self.found if readable else self.lost)[what, _where(key)] += 1
        if not readable and self.lost[what, _where(key)] == 1:
            logger.error("%s %s: that key is not in ENCRYPTION_KEYS", what, _where(key))
        return readable and not self.run.dry_run

    def _give_up(self, what: str, key: str | None, error: Unreadable) -> None:
        logger.error("one of the %s: %s", what, error)
        self.found[what, _where(key)] -= 1
        self.lost[what, _where(key)] += 1


def _where(key: str | None) -> str:
    return "in clear" if key is None else f"under {key}"


def _batches(rows: QuerySet[Any], name: str) -> Iterator[list[tuple[int, Any]]]:
    """A column of the rows with their primary key, in its order."""
    batch = [(0, None)]
    while batch:
        following = rows.filter(pk__gt=batch[-1][0]).order_by("pk").values_list("pk", name)
        batch = list(following[: settings().batch_size])
        yield batch
