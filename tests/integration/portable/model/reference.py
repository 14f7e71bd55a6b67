"""What a store must do, in a page: one key, whole seconds, nothing concurrent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from idempotency.core.decisions import (
    Busy,
    Decision,
    InDoubt,
    Lease,
    Mismatch,
    Replay,
    Standing,
)
from idempotency.core.responses import RecordedResponse

PROCESSING, SUCCEEDED, FAILED, IN_DOUBT = "processing", "succeeded", "failed", "in_doubt"
OPEN, SETTLED = (PROCESSING, IN_DOUBT), (SUCCEEDED, FAILED)

#: Nobody: the token was replaced by a job or an operator, who keeps none.
NOBODY = object()


@dataclass
class Record:
    """A key's row, as far as anybody can tell."""

    request: bytes
    lease_until: int | None
    #: The lease that may write; NOBODY, after somebody ended it.
    owner: Any = NOBODY
    state: str = PROCESSING
    attempt: int = 1
    recovery_point: str = ""
    expires_at: int | None = None
    answer: RecordedResponse | None = None


@dataclass
class Reference:
    """The key under test. ``now`` only grows."""

    now: int = 0
    record: Record | None = None
    #: Ids of generations there were.
    generations: set[int] = field(default_factory=set)

    # Claims

    def held(self, request: bytes) -> Decision | None:
        """Why the key cannot be claimed; None when it can."""
        record = self.record
        if record is None or self._expired(record):
            return None
        if record.request != request:
            return Mismatch()
        if record.state == SUCCEEDED:
            return Replay(record.answer)
        if record.state == IN_DOUBT:
            return InDoubt()
        if record.state == PROCESSING and not self.lease_over(record):
            assert record.lease_until is not None
            return Busy(timedelta(seconds=record.lease_until - self.now))
        return None

    def won(self, request: bytes, seconds: int) -> tuple[Record, bool, bool]:
        """The row after a claim that nothing held up; whether it is a takeover, and a reuse."""
        until, old = self.now + seconds, self.record
        if old is None or self._expired(old):
            self.record = Record(request, until)
            return self.record, False, old is not None
        takeover = old.state == PROCESSING
        self.record = self._taken(old, until)
        return self.record, takeover, False

    def standing(self) -> Standing:
        record = self.record
        if record is None or self._expired(record):
            return Standing.NEW
        if record.state in (SUCCEEDED, IN_DOUBT):
            return Standing.ANSWERED
        running = record.state == PROCESSING and not self.lease_over(record)
        return Standing.RUNNING if running else Standing.REPEATABLE

    # Owners

    def owned(self, lease: Lease) -> Record | None:
        """The row that the owner may write; None: the lease is lost."""
        record = self.record
        owned = record is not None and record.owner == lease.owner and record.state == PROCESSING
        return record if owned else None

    def settle(self, record: Record, state: str, ttl: int) -> None:
        record.state, record.lease_until, record.expires_at = state, None, self.now + ttl

    # Jobs and operators

    def reclaim(self, grace: int, ttl: int) -> int:
        record = self.record
        if record is None or record.recovery_point or not self.lease_over(record, grace):
            return 0
        self.settle(record, FAILED, ttl)
        record.owner = NOBODY
        return 1

    def take_over(self, seconds: int) -> Record | None:
        record = self.record
        if record is None or not record.recovery_point or not self.lease_over(record):
            return None
        self.record = self._taken(record, self.now + seconds)
        return self.record

    def take_over_seen(self, seen: Record, seconds: int, *, idle: bool) -> Record | None:
        record = self.record
        if record is None or record.state not in OPEN or not record.recovery_point:
            return None
        if not same_standing(record, seen):
            return None
        if idle and record.state == PROCESSING and not self.lease_over(record):
            return None
        self.record = self._taken(record, self.now + seconds)
        return self.record

    def force_fail(self, owner: Any, ttl: int, final: RecordedResponse | None) -> bool:
        record = self.record
        if record is None or record.owner != owner or record.state not in OPEN:
            return False
        if final is not None:
            self.settle(record, SUCCEEDED, ttl)
            record.answer = final
        elif record.recovery_point:
            record.state, record.lease_until = PROCESSING, self.now
        else:
            self.settle(record, FAILED, ttl)
        record.owner = NOBODY
        return True

    def prune(self) -> int:
        if self.record is None or not self._expired(self.record):
            return 0
        self.record = None
        return 1

    # Time

    def lease_over(self, record: Record, grace: int = 0) -> bool:
        until = record.lease_until
        return record.state == PROCESSING and until is not None and until + grace <= self.now

    def _expired(self, record: Record) -> bool:
        over = record.expires_at is not None and record.expires_at <= self.now
        return record.state in SETTLED and over

    @staticmethod
    def _taken(record: Record, until: int) -> Record:
        return replace(
            record,
            state=PROCESSING,
            attempt=record.attempt + 1,
            lease_until=until,
            expires_at=None,
        )


def same_standing(one: Record, other: Record) -> bool:
    return (one.owner, one.state, one.recovery_point) == (
        other.owner,
        other.state,
        other.recovery_point,
    )
