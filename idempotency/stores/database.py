"""The portable store: Django's ORM and conditional ``update()``, on every database.

A claim looks first and then writes under a guard that repeats what it read; when the guard matches
no row, somebody
was faster and it looks again. Reading alone never decides: at READ COMMITTED two workers may read
the same row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet

from idempotency import signals
from idempotency.core.decisions import (
    Busy,
    Claim,
    Decision,
    InDoubt,
    Lease,
    Mismatch,
    OtherVersion,
    Replay,
    Standing,
    Won,
)
from idempotency.core.errors import LeaseLost
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import SETTLED, State
from idempotency.models import EventKind, IdempotencyKey
from idempotency.stores import clock
from idempotency.stores.base import KeyRecord
from idempotency.stores.open_operations import OpenOperations
from idempotency.stores.rows import today

#: Lost races in a row after which a claim says that the key is in use: somebody else is making
#: progress.
ROUNDS = 5


class DatabaseStore(OpenOperations):
    """The Store protocol over the ORM. See ``base.py`` for what each method promises."""

    # The claim

    def claim(self, claim: Claim) -> Decision:
        digest = claim.scope.digest
        for _ in range(ROUNDS):
            row = self._look(Q(digest=digest))
            if row is None:
                won = self._insert(claim)
            elif row.state in SETTLED and row.expires_at is not None and row.expires_at <= row.now:
                won = self._start_new_generation(claim, row)
            else:
                held = self._held(claim, row)
                if held is not None:
                    return held
                won = self._run_again(claim.owner, claim.lease, row)
            if won is not None:
                return Won(won)
        return Busy(timedelta(0))

    def standing(self, digest: bytes) -> Standing:
        row = self._look(Q(digest=digest))
        if row is None or (row.state in SETTLED and row.expires_at and row.expires_at <= row.now):
            return Standing.NEW
        if row.state in (State.SUCCEEDED, State.IN_DOUBT):
            return Standing.ANSWERED
        held = row.state == State.PROCESSING and row.lease_expires_at > row.now
        return Standing.RUNNING if held else Standing.REPEATABLE

    def _held(self, claim: Claim, row: Any) -> Decision | None:
        """Why the key cannot be claimed as the row stood, or None when it can."""
        if row.fingerprint_version != claim.fingerprint_version:
            return OtherVersion(row.fingerprint_version)
        if bytes(row.fingerprint) != claim.fingerprint:
            return Mismatch()
        if row.state == State.SUCCEEDED:
            return Replay(self._response(row.pk, row.response_day))
        if row.state == State.IN_DOUBT:
            return InDoubt()
        if row.state == State.PROCESSING and row.lease_expires_at > row.now:
            return Busy(row.lease_expires_at - row.now)
        return None

    def _insert(self, claim: Claim) -> Lease | None:
        scope = claim.scope
        row = IdempotencyKey(
            digest=scope.digest,
            key=scope.key,
            route=scope.route,
            tenant=scope.tenant,
            fingerprint=claim.fingerprint,
            fingerprint_version=claim.fingerprint_version,
            state=State.PROCESSING.value,
            owner=claim.owner,
            lease_expires_at=clock.after(claim.lease),
            created_at=clock.now(),
            response_day=today(),
        )
        self._keys().bulk_create([row], ignore_conflicts=True)
        # Whether the row went in shows in whose token it bears, not in what bulk_create returns.
        won = self._keys().filter(digest=scope.digest, owner=claim.owner).first()
        return None if won is None else self._lease(won)

    def _start_new_generation(self, claim: Claim, row: Any) -> Lease | None:
        """Replace an expired row by one with a new id.

        With the old id, the downstream key, which is derived from it, would fetch the old charge.
        """
        with transaction.atomic(using=self.using):
            expired = self._as_read(row).filter(expires_at__lte=clock.now())
            deleted = self._delete(expired)
            lease = self._insert(claim) if deleted else None
            if lease is None:
                return None
            self._event(lease.key_id, EventKind.REUSED, 1, data={"previous_id": row.pk})
        return replace(lease, reused=True)

    def _run_again(
        self, owner: uuid.UUID, duration: timedelta, row: Any, **changes: Any
    ) -> Lease | None:
        """A new attempt under a FAILED key, or under one whose lease is over."""
        takeover = row.state == State.PROCESSING
        with transaction.atomic(using=self.using):
            claimable = Q(state=State.FAILED.value) | Q(lease_expires_at__lte=clock.now())
            updated = (
                self._as_read(row)
                .filter(claimable)
                .update(
                    state=State.PROCESSING.value,
                    owner=owner,
                    attempt=F("attempt") + 1,
                    lease_expires_at=clock.after(duration),
                    failure="",
                    completed_at=None,
                    expires_at=None,
                    response_day=today(),
                    **changes,
                )
            )
            if not updated:
                return None
            won = self._keys().get(pk=row.pk, owner=owner)
            if takeover:
                data = {"from": str(row.owner), "to": str(owner)}
                self._event(row.pk, EventKind.TAKEOVER, won.attempt, data=data)
        return replace(self._lease(won), takeover=takeover)

    # The owner's writes

    def renew(self, lease: Lease, duration: timedelta) -> None:
        self._demand(lease, lease_expires_at=clock.after(duration))

    def record_recovery_point(self, lease: Lease, point: str, context: Mapping[str, Any]) -> None:
        passed = {"recovery_point": point, "recovery_point_at": clock.now(), "look_up_at": None}
        made_of = {
            "operation": str(context.get("operation", "")),
            "prepared_attempt": context.get("prepared"),
        }
        self._demand(lease, context=dict(context), resumes=0, **passed, **made_of)

    def complete(
        self, lease: Lease, response: RecordedResponse, ttl: timedelta, *, commit: bool = False
    ) -> date:
        self._demand(lease, **self._settled(ttl))
        tenant = lease.scope.tenant
        day = self._keep_response(lease.key_id, lease.response_day, tenant, response)
        if day != lease.response_day:
            self._keys().filter(pk=lease.key_id, owner=lease.owner).update(response_day=day)
            self._event(lease.key_id, EventKind.DAY_MISSING, lease.attempt, data={"used": str(day)})
        return day

    def release(self, lease: Lease) -> None:
        if not self._delete(self._owned(lease).filter(recovery_point="")):
            raise LeaseLost

    def fail(
        self, lease: Lease, reason: str, ttl: timedelta, *, forget_recovery: bool = False
    ) -> None:
        changes = self._failed(reason, ttl)
        if forget_recovery:
            changes |= {"recovery_point": "", "context": None}
        self._demand(lease, **changes)

    def suspend(self, lease: Lease, reason: str) -> None:
        self._demand(lease, lease_expires_at=clock.now(), failure=reason[:500])

    def doubt(self, lease: Lease, reason: str) -> None:
        with transaction.atomic(using=self.using):
            self._demand(
                lease, state=State.IN_DOUBT.value, lease_expires_at=None, failure=reason[:500]
            )
            self._event(lease.key_id, EventKind.IN_DOUBT, lease.attempt, reason=reason)

    # Recovery and operators

    def take_over(self, key_id: int, claim_lease: timedelta) -> Lease | None:
        row = self._look(self._lease_over() & Q(pk=key_id) & ~Q(recovery_point=""))
        if row is None:
            return None
        return self._run_again(uuid.uuid4(), claim_lease, row, resumes=F("resumes") + 1)

    def reclaim(self, ttl: timedelta, *, grace: timedelta, limit: int) -> int:
        over = self._lease_over(grace) & Q(recovery_point="")
        rows = self._keys().filter(over).order_by("lease_expires_at")[:limit]
        return sum(self._reclaim_one(row, over, ttl) for row in rows)

    def _reclaim_one(self, row: IdempotencyKey, over: Q, ttl: timedelta) -> int:
        with transaction.atomic(using=self.using):
            # The condition again: between reading and writing the owner may have completed or
            # renewed.
            reclaimed = (
                self._as_read(row)
                .filter(over)
                .update(owner=uuid.uuid4(), **self._failed("lease expired", ttl))
            )
            if reclaimed:
                self._event(row.pk, EventKind.RECLAIMED, row.attempt, data={"from": str(row.owner)})
        if reclaimed:
            signals.announce_row(signals.key_reclaimed, row)
        return reclaimed

    def abandoned_operations(
        self, *, grace: timedelta, limit: int, pauses: Sequence[timedelta] = (timedelta(0),)
    ) -> list[int]:
        rested = Q(resumes__gte=len(pauses) - 1) & self._lease_over(grace + pauses[-1])
        for resumes, pause in enumerate(pauses[:-1]):
            rested |= Q(resumes=resumes) & self._lease_over(grace + pause)
        # The first condition alone is what the index serves.
        abandoned = self._keys().filter(self._lease_over(grace), rested).exclude(recovery_point="")
        return list(abandoned.order_by("lease_expires_at").values_list("pk", flat=True)[:limit])

    def force_fail(
        self,
        key_id: int,
        *,
        owner: uuid.UUID,
        actor: str,
        reason: str,
        ttl: timedelta,
        response: RecordedResponse | None = None,
    ) -> bool:
        open_states = [State.PROCESSING.value, State.IN_DOUBT.value]
        with transaction.atomic(using=self.using):
            key = self._keys().filter(pk=key_id, owner=owner, state__in=open_states)
            if response is None:
                ended = self._free(key, reason, ttl)
            else:
                ended = self._end_for_good(key, reason, ttl)
            if not ended:
                return False
            row = self._keys().get(pk=key_id)
            if response is not None:
                day = self._keep_response(key_id, row.response_day, row.tenant, response)
                self._keys().filter(pk=key_id).update(response_day=day)
            data = {"from": str(owner), "final": response is not None}
            self._event(
                key_id, EventKind.FORCE_FAILED, row.attempt, actor=actor, reason=reason, data=data
            )
        return True

    def _free(self, key: QuerySet[IdempotencyKey], reason: str, ttl: timedelta) -> int:
        """An operation past its recovery point may have had its effect, so it does not count as
        failed: its lease is over, and a retry or the job resumes it."""
        over: dict[str, Any] = {
            "state": State.PROCESSING.value,
            "lease_expires_at": clock.now(),
            "failure": reason[:500],
            # What the job had used up before the operator decided does not count.
            "resumes": 0,
        }
        resumable = key.exclude(recovery_point="")
        return resumable.update(owner=uuid.uuid4(), **over) or key.filter(recovery_point="").update(
            owner=uuid.uuid4(), **self._failed(reason, ttl)
        )

    def _end_for_good(self, key: QuerySet[IdempotencyKey], reason: str, ttl: timedelta) -> int:
        settled = self._settled(ttl) | {"failure": reason[:500], "response_day": today()}
        return key.update(owner=uuid.uuid4(), **settled)

    def prune_expired(
        self, *, limit: int, after_id: int = 0, dry_run: bool = False
    ) -> tuple[int, int | None]:
        ids = list(
            self._keys().filter(pk__gt=after_id).order_by("pk").values_list("pk", flat=True)[:limit]
        )
        if not ids:
            return 0, None
        # The condition is in the DELETE: a claim that revives the key in between gives it a new id.
        states = [state.value for state in SETTLED]
        expired = self._keys().filter(pk__in=ids, state__in=states, expires_at__lte=clock.now())
        deleted = expired.count() if dry_run else self._delete(expired)
        return deleted, ids[-1] if len(ids) == limit else None

    def find(self, digests: list[bytes]) -> list[KeyRecord]:
        rows = self._keys().filter(digest__in=digests).order_by("-created_at", "-pk")
        return [self._record(row) for row in rows]
