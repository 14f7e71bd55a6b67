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
from functools import lru_cache
from struct import Struct
from typing import Any

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import Format

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
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = date(2000, 1, 1).toordinal()
_INTERVAL = Struct(">qii")


class _ClaimCursor(StatementCursor):
    statement = (
        "SELECT o_outcome, o_id, o_attempt, o_day, o_recovery_point, o_context, o_version, "
        "o_lease_left, o_status, o_headers, o_body "
        "FROM idempotency_claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    )
    name = b"idempotency_claim"
    # The texts of a caller by their length: a NUL in them is refused, and not their end.
    formats = [_BINARY] * 5 + [_TEXT, _BINARY] + [_TEXT] * 3


class _CompleteCursor(StatementCursor):
    statement = "SELECT idempotency_complete_v1($1, $2, $3, $4, $5, $6, $7)"
    name = b"idempotency_complete"
    formats = [_TEXT, _BINARY, _TEXT, _TEXT, _BINARY, _TEXT, _TEXT]


class _CompleteAndCommitCursor(_CompleteCursor):
    name = b"idempotency_complete_and_commit"
    commits = True


@lru_cache(maxsize=256)
def _duration(duration: timedelta) -> bytes:
    return b"%d microseconds" % (duration // _MICROSECOND)


def _frozen() -> Wire:
    now = clock.frozen()
    return None if now is None else now.isoformat().encode()


# What a row holds, in PostgreSQL's binary format


def _integer(sent: bytes) -> int:
    return int.from_bytes(sent, "big", signed=True)


@lru_cache(maxsize=16)
def _day(sent: bytes) -> date:
    """Days since 2000-01-01."""
    return date.fromordinal(_FIRST_DAY + _integer(sent))


def _left(sent: Wire) -> timedelta:
    """Microseconds, days and months, of which a lease has none."""
    if sent is None:
        return timedelta(0)
    microseconds, days, _ = _INTERVAL.unpack(sent)
    return timedelta(days=days, microseconds=microseconds)


def _json(sent: bytes) -> Any:
    """A byte for the version of the format, and the text."""
    return json.loads(sent[1:])


def _won(row: tuple[Any, ...], claim: Claim) -> Won:
    outcome, key_id, attempt, day, recovery_point, context = row[:6]
    return Won(
        Lease(
            key_id=_integer(key_id),
            owner=claim.owner,
            attempt=_integer(attempt),
            digest=claim.scope.digest,
            scope=claim.scope,
            response_day=_day(day),
            recovery_point=recovery_point.decode(),
            context=None if context is None else _json(context),
            takeover=outcome == b"takeover",
            reused=outcome == b"reused",
        )
    )


def _replay(row: tuple[Any, ...]) -> Replay:
    status, headers, body = row[8:]
    if status is None:
        return Replay(None)
    return Replay(opened(_integer(row[1]), _integer(status), _json(headers), body))


def _busy(row: tuple[Any, ...]) -> Busy:
    return Busy(_left(row[7]))


_HELD: dict[bytes, Callable[[tuple[Any, ...]], Decision]] = {
    b"replay": _replay,
    b"busy": _busy,
    b"mismatch": lambda row: Mismatch(),
    b"in_doubt": lambda row: InDoubt(),
    b"version": lambda row: OtherVersion(_integer(row[6])),
}


class PostgresStore(DatabaseStore):
    """The Store protocol over ``idempotency_claim_v1`` and ``idempotency_complete_v1``."""

    def claim(self, claim: Claim) -> Decision:
        scope = claim.scope
        connection = connections[self.using]
        # As Django's own cursor would: CONN_HEALTH_CHECKS replaces a session that a restart of the
        # database ended.
        connection.close_if_health_check_failed()
        connection.ensure_connection()
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
                claim.owner.bytes,
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
        connection = connections[self.using]
        connection.ensure_connection()
        try:
            (completed,) = _send(
                connection,
                _CompleteAndCommitCursor if commit and CAN_COMMIT else _CompleteCursor,
                [
                    b"%d" % lease.key_id,
                    lease.owner.bytes,
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
        day = _day(completed)
        if day != lease.response_day:
            logger.warning("no partition for %s: the response went to %s", lease.response_day, day)
        return day


def _send(
    connection: BaseDatabaseWrapper, kind: type[StatementCursor], parameters: list[Wire]
) -> tuple[Any, ...]:
    connection.validate_thread_sharing()
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    cursor = kind(connection.connection, parameters)
    wrap(cursor).execute(kind.statement)  # type: ignore[arg-type]  # all of a cursor that it needs
    if not cursor.row:
        raise RuntimeError("An execute_wrapper has kept a statement of the idempotency store back.")
    return cursor.row
