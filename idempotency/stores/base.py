"""Where records live. One protocol, one conformance suite for every implementation.

Every write names what it expects: the claim names what it read, the owner's writes name the owner
and
``state = PROCESSING``, an operator's write names the owner it saw. No method reads first and writes
unguarded.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Protocol

from idempotency.core.decisions import Claim, Decision, Lease, Standing
from idempotency.core.responses import RecordedResponse
from idempotency.models import EventKind, IdempotencyKey


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it stood when it was read. Good for showing, never for deciding."""

    key: str
    route: str
    tenant: str
    state: str
    attempt: int
    created_at: datetime
    expires_at: datetime | None
    response: RecordedResponse | None


@dataclass(frozen=True, slots=True)
class Seen:
    """How a key stood when somebody looked. What he decides holds only while it stands so."""

    owner: uuid.UUID
    state: str
    #: The same attempt may have passed it meanwhile, and made its outside call.
    recovery_point: str

    @classmethod
    def of(cls, key: IdempotencyKey) -> Seen:
        """How a key stands on the page that is being shown."""
        return cls(key.owner, key.state, key.recovery_point)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An operation past its recovery point that nobody is at, as it stood when it was read."""

    key_id: int
    seen: Seen
    digest: bytes
    context: dict[str, Any]
    recovery_point_at: datetime
    #: None: it was not asked about yet.
    look_up_at: datetime | None
    #: When it was read, by the database's clock.
    now: datetime

    @property
    def age(self) -> timedelta:
        """Since the recovery point."""
        return self.now - self.recovery_point_at


class Store(Protocol):
    """The claim and the owner's writes raise LeaseLost when the expected row is not there any more.

    Database errors come through as Django raises them; the engine decides what they mean.
    """

    using: str

    def claim(self, claim: Claim) -> Decision:
        """Win the key or learn why not, by one conditional write. Committed at once, unless in a
        transaction."""

    def standing(self, digest: bytes) -> Standing:
        """Where the key behind this digest stands now. One statement, which writes nothing."""

    def renew(self, lease: Lease, duration: timedelta) -> None:
        """Let the lease run ``duration`` from now."""

    def record_recovery_point(self, lease: Lease, point: str, context: Mapping[str, Any]) -> None:
        """Remember how far an operation is, and what its next step needs."""

    def complete(
        self, lease: Lease, response: RecordedResponse, ttl: timedelta, *, commit: bool = False
    ) -> date:
        """Settle the key with its answer, inside the transaction of the work. Raises LeaseLost,
        and the transaction must be rolled back.

        Returns the day the response went to: another than the lease's when that one has no
        partition. ``commit``: this is the last statement of the outermost transaction, so a store
        may commit in the same breath; one that does not leaves it to Django.
        """

    def release(self, lease: Lease) -> None:
        """Forget the key, as if the request never came; refused once there is a recovery point."""

    def fail(
        self, lease: Lease, reason: str, ttl: timedelta, *, forget_recovery: bool = False
    ) -> None:
        """Nothing happened: the same request may run again. ``forget_recovery``: from its
        beginning."""

    def suspend(self, lease: Lease, reason: str) -> None:
        """End the lease now and keep the recovery point: the next claim or the job resumes the
        operation."""

    def doubt(self, lease: Lease, reason: str) -> None:
        """Nobody can know now whether the outside effect happened; whoever finds out settles it."""

    def take_over(self, key_id: int, claim_lease: timedelta) -> Lease | None:
        """Claim an abandoned operation (lease over, recovery point set) for a job; None when it is
        not there."""

    def reclaim(self, ttl: timedelta, *, grace: timedelta, limit: int) -> int:
        """Fail up to ``limit`` keys whose lease is over by ``grace`` and that have no recovery
        point."""

    def abandoned_operations(
        self, *, grace: timedelta, limit: int, pauses: Sequence[timedelta] = (timedelta(0),)
    ) -> list[int]:
        """Ids of up to ``limit`` operations whose lease is over by ``grace``, the longest abandoned
        first.

        ``pauses``: how much longer it has to be over after the first attempt, after the second and
        so on; the last one holds for all later attempts.
        """

    def force_fail(
        self,
        key_id: int,
        *,
        owner: Any,
        actor: str,
        reason: str,
        ttl: timedelta,
        response: RecordedResponse | None = None,
    ) -> bool:
        """An operator ends the attempt of ``owner``. With a response the key is settled with it for
        good; else it is free for a retry: FAILED, or, past a recovery point, abandoned, so that the
        job resumes it too.

        False: the key is not PROCESSING or IN_DOUBT under that owner any more, and nothing was
        written.
        """

    def age_of_recovery_point(self, lease: Lease) -> timedelta:
        """How long ago the operation passed it, by the database's clock."""

    def unsettled_operations(self, *, after: timedelta, limit: int) -> list[Unsettled]:
        """Up to ``limit`` operations that passed their recovery point ``after`` ago, that nobody is
        at (IN_DOUBT, or the lease over) and that are due to be asked about, the longest due first.
        """

    def count_unsettled(self, *, after: timedelta) -> int:
        """How many operations passed their recovery point ``after`` ago and have no outcome."""

    def look_up_again(self, unsettled: Unsettled, at: datetime) -> bool:
        """Put the next question about an operation off until then; the fence is not its concern.
        False: somebody is at it, it is settled, or another question was faster."""

    def take_over_seen(
        self,
        key_id: int,
        seen: Seen,
        duration: timedelta,
        *,
        idle: bool = False,
        anew: bool = False,
    ) -> Lease | None:
        """Claim an operation past its recovery point that stands as it was seen, to settle it. A
        live owner is fenced off; with ``idle`` there must be none. None: it does not stand so any
        more. ``anew``: what the job that resumes it had used up before does not count."""

    def resolved(self, lease: Lease, *, actor: str, reason: str, data: Mapping[str, Any]) -> None:
        """Tell the story who settled the operation and why, in the transaction that does."""

    def note(
        self,
        key_id: int,
        kind: EventKind,
        attempt: int,
        *,
        reason: str,
        actor: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a line of a key's story, in the transaction of what it tells of."""

    def prune_expired(
        self, *, limit: int, after_id: int = 0, dry_run: bool = False
    ) -> tuple[int, int | None]:
        """Look at up to ``limit`` keys after ``after_id`` and delete the expired ones.

        Returns how many were deleted, or with ``dry_run`` would have been, and the id to continue
        after, None at the end of the table.
        """

    def find(self, digests: list[bytes]) -> list[KeyRecord]:
        """The keys behind these digests, newest first."""
