"""Operations past their recovery point that nobody is at, over the ORM."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost
from idempotency.core.states import State
from idempotency.models import EventKind, IdempotencyKey
from idempotency.stores import clock
from idempotency.stores.base import Seen, Unsettled
from idempotency.stores.rows import Rows, today


class OpenOperations(Rows):
    """Finding them, putting them off, and taking them over to settle them."""

    def age_of_recovery_point(self, lease: Lease) -> timedelta:
        row = self._look(Q(pk=lease.key_id, owner=lease.owner))
        if row is None or row.recovery_point_at is None:
            raise LeaseLost
        age: timedelta = row.now - row.recovery_point_at
        return age

    def unsettled_operations(self, *, after: timedelta, limit: int) -> list[Unsettled]:
        due = Q(look_up_at__isnull=True) | Q(look_up_at__lte=clock.now())
        rows = self._past_recovery_point(after).filter(self._idle(), due).annotate(now=clock.now())
        longest_due = F("look_up_at").asc(nulls_first=True)
        return [self._unsettled(row) for row in rows.order_by(longest_due, "pk")[:limit]]

    def count_unsettled(self, *, after: timedelta) -> int:
        return self._past_recovery_point(after).count()

    def _past_recovery_point(self, after: timedelta) -> QuerySet[IdempotencyKey]:
        # The index on leases holds the open keys and no other.
        open_keys = self._keys().filter(state__in=[State.PROCESSING.value, State.IN_DOUBT.value])
        passed = open_keys.filter(recovery_point_at__lte=clock.after(-after))
        return passed.exclude(recovery_point="")

    def look_up_again(self, unsettled: Unsettled, at: datetime) -> bool:
        asked = self._keys().filter(self._idle(), pk=unsettled.key_id)
        if unsettled.look_up_at is None:
            return bool(asked.filter(look_up_at__isnull=True).update(look_up_at=at))
        return bool(asked.filter(look_up_at=unsettled.look_up_at).update(look_up_at=at))

    def take_over_seen(
        self,
        key_id: int,
        seen: Seen,
        duration: timedelta,
        *,
        idle: bool = False,
        anew: bool = False,
    ) -> Lease | None:
        owner = uuid.uuid4()
        standing = self._seen(key_id, seen).exclude(recovery_point="")
        if idle:
            standing = standing.filter(self._idle())
        taken = standing.update(
            state=State.PROCESSING.value,
            owner=owner,
            attempt=F("attempt") + 1,
            lease_expires_at=clock.after(duration),
            resumes=0 if anew else F("resumes"),
            response_day=today(),
        )
        return self._lease(self._keys().get(pk=key_id, owner=owner)) if taken else None

    def resolved(self, lease: Lease, *, actor: str, reason: str, data: Mapping[str, Any]) -> None:
        self._event(
            lease.key_id,
            EventKind.RESOLVED,
            lease.attempt,
            actor=actor,
            reason=reason,
            data=dict(data),
        )

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
        told = {"actor": actor[:150], "reason": reason, "data": dict(data or {})}
        self._event(key_id, kind, attempt, **told)

    def _seen(self, key_id: int, seen: Seen) -> QuerySet[IdempotencyKey]:
        """The fence of whoever is not the owner: the key as he saw it, and still open."""
        open_states = [State.PROCESSING.value, State.IN_DOUBT.value]
        return self._keys().filter(
            pk=key_id,
            owner=seen.owner,
            state=seen.state,
            recovery_point=seen.recovery_point,
            state__in=open_states,
        )

    def _idle(self) -> Q:
        """Open, and nobody is at it."""
        return Q(state=State.IN_DOUBT.value) | self._lease_over()

    @staticmethod
    def _unsettled(row: Any) -> Unsettled:
        return Unsettled(
            key_id=row.pk,
            seen=Seen(row.owner, row.state, row.recovery_point),
            digest=bytes(row.digest),
            context=row.context or {},
            recovery_point_at=row.recovery_point_at,
            look_up_at=row.look_up_at,
            now=row.now,
        )
