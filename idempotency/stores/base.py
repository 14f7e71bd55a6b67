"""Where records live. One protocol, one conformance suite for every implementation.

Every write names what it expects: the claim names what it read, the owner's writes name the owner
and
``state = PROCESSING``, an operator's write names the owner it saw. No method reads first and writes
unguarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Protocol

from idempotency.core.decisions import Claim, Decision, Lease, Standing
from idempotency.core.responses import RecordedResponse


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

    def complete(self, lease: Lease, response: RecordedResponse, ttl: timedelta) -> date:
        """Settle the key with its answer, inside the transaction of the work.

        Returns the day the response went to: another than the lease's when that one has no
        partition.
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
        """Nobody can know whether the outside effect happened; an operator settles it."""

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

    def prune_expired(
        self, *, limit: int, after_id: int = 0, dry_run: bool = False
    ) -> tuple[int, int | None]:
        """Look at up to ``limit`` keys after ``after_id`` and delete the expired ones.

        Returns how many were deleted, or with ``dry_run`` would have been, and the id to continue
        after, None at the end of the table.
        """

    def find(self, digests: list[bytes]) -> list[KeyRecord]:
        """The keys behind these digests, newest first."""
