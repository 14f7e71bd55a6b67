"""Django's atomic block on psycopg, without what the outermost one asks of psycopg for nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic
from psycopg.pq import TransactionStatus

from idempotency.stores.begin import BeginWithFirst

_IDLE = TransactionStatus.IDLE


class WorkBlock(Atomic):
    """An ``atomic()`` that begins with its first statement, and ends without a COMMIT of its own
    where that went along with the completion of the key.

    Django turns psycopg's autocommit off, has it commit, and turns autocommit on again. psycopg has
    nothing to do but to note that, and what is around the three calls costs as much as making the
    fingerprint of a small request twice over. So the flags are set here that those calls would set;
    whatever is not plain (a savepoint, a rollback, a session that is broken or in somebody's
    transaction, a log of queries that wants to show BEGIN) goes Django's way. That both leave the
    connection in one state is tested for each release of Django.

    Made for one use, unlike Django's.
    """

    def __init__(self, connection: BaseDatabaseWrapper, durable: bool) -> None:
        super().__init__(connection.alias, True, durable)
        self._connection = connection
        #: Whether the block was entered without asking psycopg.
        self._is_plain = False
        self._begin: BeginWithFirst | None = None

    def __enter__(self) -> None:
        connection = self._connection
        if connection.in_atomic_block:
            super().__enter__()
            return
        connection.close_if_health_check_failed()
        if connection.autocommit and _is_idle(connection) and not connection.queries_logged:
            self._is_plain = True
            connection.commit_on_exit = True
            connection.needs_rollback = False
            _set_autocommit(connection, False)
            connection.in_atomic_block = True
            connection.atomic_blocks.append(self)
        else:
            super().__enter__()
        self._begin = BeginWithFirst(connection)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        connection = self._connection
        if self._begin is not None:
            self._begin.withdraw()
        done = kind is None and not connection.needs_rollback
        if not (done and self._is_plain and _is_idle(connection)):
            super().__exit__(kind, error, trace)
            return
        connection.atomic_blocks.pop()
        connection.in_atomic_block = False
        connection.errors_occurred = False
        connection.run_commit_hooks_on_set_autocommit_on = True
        _set_autocommit(connection, True)
        connection.run_and_clear_commit_hooks()
        connection.run_commit_hooks_on_set_autocommit_on = False


def _is_idle(connection: BaseDatabaseWrapper) -> bool:
    """Whether the session is there, is psycopg's, and is in no transaction."""
    session = getattr(connection.connection, "pgconn", None)
    return session is not None and bool(session.transaction_status == _IDLE)


def _set_autocommit(connection: BaseDatabaseWrapper, autocommit: bool) -> None:
    session: Any = connection.connection
    session._autocommit = connection.autocommit = autocommit
