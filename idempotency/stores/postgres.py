"""The same store with one statement to claim and one to complete, as functions in the database.

Planning is what a claim costs: a statement that joins 35 day partitions plans in about a
millisecond and takes 75 locks each time, because Django binds on the client; a function's cached
plan takes a quarter of that and 5 locks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import Escaping, Format

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
from idempotency.stores.statements import CAN_COMMIT, StatementCursor, Wire

logger = logging.getLogger("idempotency")

#: What idempotency_complete_v1 raises for a lost lease.
_LEASE_LOST = "ID001"
_TEXT, _BINARY = Format.TEXT, Format.BINARY


class _ClaimCursor(StatementCursor):
    # Days and durations as text that no setting of the session changes.
    statement = (
        "SELECT o_outcome, o_id, o_attempt, to_char(o_day, 'YYYY-MM-DD'), o_recovery_point, "
        "o_context, o_version, extract(epoch FROM o_lease_left), o_status, o_headers, o_body "
        "FROM idempotency_claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    )
    name = b"idempotency_claim"
    # The texts of a caller by their length: a NUL in them is refused, and not their end.
    formats = [_BINARY] * 5 + [_TEXT] * 5


class _CompleteCursor(StatementCursor):
    statement = "SELECT to_char(idempotency_complete_v1($1, $2, $3, $4, $5, $6, $7), 'YYYY-MM-DD')"
    name = b"idempotency_complete"
    formats = [_TEXT, _TEXT, _TEXT, _TEXT, _BINARY, _TEXT, _TEXT]


class _CompleteAndCommitCursor(_CompleteCursor):
    name = b"idempotency_complete_and_commit"
    commits = True


def _duration(duration: timedelta) -> bytes:
    return b"%d microseconds" % (duration // timedelta(microseconds=1))


def _frozen() -> Wire:
    now = clock.frozen()
    return None if now is None else now.isoformat().encode()


def _won(row: tuple[Any, ...], claim: Claim) -> Won:
    outcome, key_id, attempt, day, recovery_point, context = row[:6]
    return Won(
        Lease(
            key_id=int(key_id),
            owner=claim.owner,
            attempt=int(attempt),
            digest=claim.scope.digest,
            scope=claim.scope,
            response_day=date.fromisoformat(day.decode()),
            recovery_point=recovery_point.decode(),
            context=None if context is None else json.loads(context),
            takeover=outcome == b"takeover",
            reused=outcome == b"reused",
        )
    )


def _replay(row: tuple[Any, ...]) -> Replay:
    status, headers, body = row[8:]
    if status is None:
        return Replay(None)
    kept = None if body is None else Escaping().unescape_bytea(body)
    return Replay(opened(int(row[1]), int(status), json.loads(headers), kept))


def _busy(row: tuple[Any, ...]) -> Busy:
    return Busy(timedelta(seconds=float(row[7] or 0)))


_HELD: dict[bytes, Callable[[tuple[Any, ...]], Decision]] = {
    b"replay": _replay,
    b"busy": _busy,
    b"mismatch": lambda row: Mismatch(),
    b"in_doubt": lambda row: InDoubt(),
    b"version": lambda row: OtherVersion(int(row[6])),
}


class PostgresStore(DatabaseStore):
    """The Store protocol over ``idempotency_claim_v1`` and ``idempotency_complete_v1``."""

    def claim(self, claim: Claim) -> Decision:
        scope = claim.scope
        connection = self._connected()
        row = _send(
            connection,
            _ClaimCursor,
            [
                scope.digest,
                scope.key.encode(),
                scope.route.encode(),
                scope.tenant.encode(),
                claim.fingerprint,
                b"%d" % claim.fingerprint_version,
                str(claim.owner).encode(),
                _duration(claim.lease),
                # Asynchronous only as a transaction of its own; inside another one it would unflush
                # the work's commit.
                b"true" if connection.autocommit else b"false",
                _frozen(),
            ],
        )
        held = _HELD.get(row[0])
        return _won(row, claim) if held is None else held(row)

    def complete(
        self, lease: Lease, response: RecordedResponse, ttl: timedelta, *, commit: bool = False
    ) -> date:
        response = encryption.seal(response)
        try:
            (completed,) = _send(
                self._connected(),
                _CompleteAndCommitCursor if commit and CAN_COMMIT else _CompleteCursor,
                [
                    b"%d" % lease.key_id,
                    str(lease.owner).encode(),
                    b"%d" % response.status,
                    json.dumps(response.headers).encode(),
                    response.body,
                    _duration(ttl),
                    _frozen(),
                ],
            )
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) == _LEASE_LOST:
                raise LeaseLost from None
            raise
        day = date.fromisoformat(completed.decode())
        if day != lease.response_day:
            logger.warning("no partition for %s: the response went to %s", lease.response_day, day)
        return day

    def _connected(self) -> BaseDatabaseWrapper:
        """Django's connection, as its own cursor would find it: CONN_HEALTH_CHECKS replaces a
        session that a restart of the database ended."""
        connection = connections[self.using]
        connection.close_if_health_check_failed()
        connection.ensure_connection()
        connection.validate_thread_sharing()
        return connection


def _send(
    connection: BaseDatabaseWrapper, kind: type[StatementCursor], parameters: list[Wire]
) -> tuple[Any, ...]:
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    cursor = kind(connection.connection, parameters)
    wrap(cursor).execute(kind.statement)  # type: ignore[arg-type]  # all of a cursor that it needs
    if not cursor.row:
        raise RuntimeError("An execute_wrapper has kept a statement of the idempotency store back.")
    return cursor.row
