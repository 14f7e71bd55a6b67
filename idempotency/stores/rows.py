"""The rows of a key: its record, its answer, its events, and the fences that every write names."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import TruncDate

from idempotency import encryption
from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.models import EventKind, IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import clock
from idempotency.stores.base import KeyRecord

logger = logging.getLogger("idempotency")


def today() -> Combinable:
    """The database's day, in UTC."""
    return TruncDate(clock.now(), tzinfo=UTC)


def opened(
    key_id: int, status: int, headers: Iterable[Iterable[str]], body: bytes | memoryview | None
) -> RecordedResponse:
    """A stored answer as it was given; without its body when nobody can read that any more. The
    retry then hears that it is not stored, and the work does not run again."""
    pairs = tuple((name, value) for name, value in headers)
    stored = RecordedResponse(status, pairs, None if body is None else bytes(body))
    try:
        return encryption.unseal(stored)
    except encryption.Unreadable as error:
        logger.error("the answer of record %s cannot be read: %s", key_id, error)
        return encryption.bare(stored)


class Rows:
    """What the writes of every store are made of."""

    def __init__(self, using: str) -> None:
        self.using = using

    def _keys(self) -> QuerySet[IdempotencyKey]:
        return IdempotencyKey.objects.using(self.using)

    def _look(self, condition: Q) -> Any:
        """The row with the database's time beside it, so that both are of one moment."""
        return self._keys().filter(condition).annotate(now=clock.now()).first()

    def _owned(self, lease: Lease) -> QuerySet[IdempotencyKey]:
        """The fence: the generation, the attempt's token, and the state it expects."""
        return self._keys().filter(pk=lease.key_id, owner=lease.owner, state=State.PROCESSING.value)

    def _demand(self, lease: Lease, **changes: Any) -> None:
        if not self._owned(lease).update(**changes):
            raise LeaseLost

    def _as_read(self, row: IdempotencyKey) -> QuerySet[IdempotencyKey]:
        return self._keys().filter(pk=row.pk, owner=row.owner, state=row.state)

    def _delete(self, keys: QuerySet[IdempotencyKey]) -> int:
        """One DELETE under the queryset's conditions.

        ``QuerySet.delete()`` reads the rows and then deletes them by id alone as soon as anybody
        listens to the delete signals of every model, and the guard would be gone.
        """
        return keys._raw_delete(self.using)

    @staticmethod
    def _lease_over(grace: timedelta = timedelta(0)) -> Q:
        return Q(state=State.PROCESSING.value, lease_expires_at__lte=clock.after(-grace))

    @staticmethod
    def _settled(ttl: timedelta) -> dict[str, Any]:
        return {
            "state": State.SUCCEEDED.value,
            "lease_expires_at": None,
            "context": None,
            "failure": "",
            "completed_at": clock.now(),
            "expires_at": clock.after(ttl),
        }

    @staticmethod
    def _failed(reason: str, ttl: timedelta) -> dict[str, Any]:
        return {
            "state": State.FAILED.value,
            "lease_expires_at": None,
            "failure": reason[:500],
            "completed_at": clock.now(),
            "expires_at": clock.after(ttl),
        }

    def _keep_response(
        self, key_id: int, day: date, tenant: str, response: RecordedResponse
    ) -> date:
        """Insert the response; on a missing partition use the newest day there is. Returns the day
        used."""
        response = encryption.seal(response)
        try:
            with transaction.atomic(using=self.using):
                self._insert_response(key_id, day, tenant, response)
            return day
        except IntegrityError as error:
            newest = self._newest_day_if_missing(error, "idempotency_storedresponse")
            if newest is None:
                raise
            self._insert_response(key_id, newest, tenant, response)
            return newest

    def _insert_response(
        self, key_id: int, day: date, tenant: str, response: RecordedResponse
    ) -> None:
        StoredResponse.objects.using(self.using).bulk_create(
            [
                StoredResponse(
                    key_id=key_id,
                    day=day,
                    tenant=tenant,
                    status=response.status,
                    headers=[list(pair) for pair in response.headers],
                    body=response.body,
                )
            ]
        )

    def _newest_day_if_missing(self, error: IntegrityError, table: str) -> date | None:
        """The newest day of a table whose insert found no partition; None when that was not the
        trouble."""
        cause = error.__cause__
        if getattr(cause, "sqlstate", None) != "23514" or cause.diag.constraint_name:  # type: ignore[union-attr]
            return None
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT idempotency_newest_day_v1(%s)", [table])
            newest: date | None = cursor.fetchone()[0]
        return newest

    def _response(self, key_id: int, day: date) -> RecordedResponse | None:
        row = StoredResponse.objects.using(self.using).filter(key_id=key_id, day=day).first()
        if row is None:
            return None
        body = None if row.body is None else bytes(row.body)
        return opened(key_id, row.status, row.headers, body)

    def _event(self, key_id: int, kind: EventKind, attempt: int, **fields: Any) -> None:
        now = self._keys().filter(pk=key_id).annotate(now=clock.now()).values_list("now", flat=True)
        at: datetime = now.get()
        fields["reason"] = fields.get("reason", "")[:1000]
        event = KeyEvent(
            day=at.astimezone(UTC).date(),
            key_id=key_id,
            at=at,
            kind=kind,
            attempt=attempt,
            **fields,
        )
        try:
            with transaction.atomic(using=self.using):
                event.save(using=self.using, force_insert=True)
        except IntegrityError as error:
            newest = self._newest_day_if_missing(error, "idempotency_keyevent")
            if newest is None:
                raise
            event.pk, event.day = None, newest
            event.save(using=self.using, force_insert=True)

    @staticmethod
    def _lease(row: IdempotencyKey) -> Lease:
        return Lease(
            key_id=row.pk,
            owner=row.owner,
            attempt=row.attempt,
            digest=bytes(row.digest),
            scope=Scope(row.route, row.tenant, row.key),
            response_day=row.response_day,
            recovery_point=row.recovery_point,
            context=row.context,
        )

    def _record(self, row: IdempotencyKey) -> KeyRecord:
        answered = row.state == State.SUCCEEDED
        return KeyRecord(
            key=row.key,
            route=row.route,
            tenant=row.tenant,
            state=row.state,
            attempt=row.attempt,
            created_at=row.created_at,
            expires_at=row.expires_at,
            response=self._response(row.pk, row.response_day) if answered else None,
        )
