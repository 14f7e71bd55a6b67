"""The same store with one statement to claim and one to complete, as functions in the database.

Planning is what a claim costs: a statement that joins 35 day partitions plans in about a
millisecond and takes 75 locks each time, because Django binds on the client; a function's cached
plan takes a quarter of that and 5 locks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor, Connection, Cursor

from idempotency import encryption
from idempotency.core.decisions import (
    Busy,
    Claim,
    Decision,
    InDoubt,
    Lease,
    Mismatch,
    OtherVersion,
    Replay,
    Won,
)
from idempotency.core.errors import LeaseLost
from idempotency.core.responses import RecordedResponse
from idempotency.stores import clock
from idempotency.stores.database import DatabaseStore
from idempotency.stores.rows import opened

logger = logging.getLogger("idempotency")

_CLAIM = "SELECT * FROM idempotency_claim_v1(%s, %s, %s, %s, %s, %s::smallint, %s, %s, %s, %s)"
_COMPLETE = "SELECT idempotency_complete_v1(%s, %s, %s::smallint, %s::jsonb, %s, %s, %s)"
#: One message, so one round trip, of the simple protocol: the server stops at the first error, so
#: a lost lease is never committed. Django's own COMMIT then finds no transaction and sends nothing.
_COMPLETE_AND_COMMIT = f"{_COMPLETE}; COMMIT"
#: What idempotency_complete_v1 raises for a lost lease.
_LEASE_LOST = "ID001"


class _Row(NamedTuple):
    """One row of idempotency_claim_v1."""

    outcome: str
    id: int
    attempt: int
    day: date
    recovery_point: str
    context: str | None
    version: int
    lease_left: timedelta | None
    status: int | None
    headers: str
    body: bytes | None

    def won(self, claim: Claim) -> Won:
        return Won(
            Lease(
                key_id=self.id,
                owner=claim.owner,
                attempt=self.attempt,
                digest=claim.scope.digest,
                scope=claim.scope,
                response_day=self.day,
                recovery_point=self.recovery_point,
                context=None if self.context is None else json.loads(self.context),
                takeover=self.outcome == "takeover",
                reused=self.outcome == "reused",
            )
        )

    def replay(self) -> Replay:
        if self.status is None:
            return Replay(None)
        return Replay(opened(self.id, self.status, json.loads(self.headers), self.body))


_HELD: dict[str, Callable[[_Row], Decision]] = {
    "replay": _Row.replay,
    "busy": lambda row: Busy(row.lease_left or timedelta(0)),
    "mismatch": lambda row: Mismatch(),
    "in_doubt": lambda row: InDoubt(),
    "version": lambda row: OtherVersion(row.version),
}


class PostgresStore(DatabaseStore):
    """The Store protocol over ``idempotency_claim_v1`` and ``idempotency_complete_v1``."""

    def claim(self, claim: Claim) -> Decision:
        scope = claim.scope
        # Asynchronous only as a transaction of its own; inside another one it would unflush the
        # work's commit.
        alone = connections[self.using].get_autocommit()
        row = _Row(
            *self._call(
                # Binds on the server, so that psycopg may prepare it (``prepare_threshold``).
                Cursor,
                _CLAIM,
                [
                    scope.digest,
                    scope.key,
                    scope.route,
                    scope.tenant,
                    claim.fingerprint,
                    claim.fingerprint_version,
                    claim.owner,
                    claim.lease,
                    alone,
                    clock.frozen(),
                ],
            )
        )
        held = _HELD.get(row.outcome)
        return row.won(claim) if held is None else held(row)

    def complete(
        self, lease: Lease, response: RecordedResponse, ttl: timedelta, *, commit: bool = False
    ) -> date:
        day: date
        response = encryption.seal(response)
        try:
            (day,) = self._call(
                # Binds on the client: two statements in one message cannot have parameters.
                ClientCursor,
                _COMPLETE_AND_COMMIT if commit else _COMPLETE,
                [
                    lease.key_id,
                    lease.owner,
                    response.status,
                    json.dumps(response.headers),
                    response.body,
                    ttl,
                    clock.frozen(),
                ],
            )
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) == _LEASE_LOST:
                raise LeaseLost from None
            raise
        if day != lease.response_day:
            logger.warning("no partition for %s: the response went to %s", lease.response_day, day)
        return day

    def _call(self, kind: type[Cursor[Any]], sql: str, parameters: list[Any]) -> tuple[Any, ...]:
        connection = connections[self.using]
        # As Django's own cursor does: CONN_HEALTH_CHECKS replaces a session that a restart of the
        # database ended.
        connection.close_if_health_check_failed()
        connection.ensure_connection()
        connection.validate_thread_sharing()
        wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
        cursor = wrap(_cursor_of(connection, kind))
        cursor.execute(sql, parameters)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


@dataclass(slots=True)
class _Cursors:
    """The cursors of one session. Making one costs a sixth of a claim, and the one row is read
    before anybody can use it again."""

    session: Connection[Any]
    made: dict[type[Cursor[Any]], Cursor[Any]]


_cursors: WeakKeyDictionary[BaseDatabaseWrapper, _Cursors] = WeakKeyDictionary()


def _cursor_of(connection: BaseDatabaseWrapper, kind: type[Cursor[Any]]) -> Any:
    kept = _cursors.get(connection)
    if kept is None or kept.session is not connection.connection:
        kept = _cursors[connection] = _Cursors(connection.connection, {})
    cursor = kept.made.get(kind)
    if cursor is None:
        cursor = kept.made[kind] = kind(kept.session)
    return cursor
