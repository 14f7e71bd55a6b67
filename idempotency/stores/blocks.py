"""Django's atomic block on psycopg, without what the outermost one asks of psycopg for nothing."""

from __future__ import annotations

from functools import cache
from types import TracebackType
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.transaction import Atomic
from psycopg import Connection
from psycopg.pq import TransactionStatus

from idempotency.stores.begin import BeginWithFirst

_IDLE = TransactionStatus.IDLE


class WorkBlock(Atomic):
    """An ``atomic()`` that begins with its first statement, and ends without a COMMIT of its own
    where that went along with the completion of the key.

    Django turns psycopg's autocommit off, has it commit, and turns autocommit on again. psycopg has
    nothing to do but to note that, and what is around the three calls costs as much as making the
    fingerprint of a small request twice over. So the flags are set here that those calls would set;
    whatever is not plain goes Django's way: a savepoint, a rollback, a session that is broken,
    behind a pool's proxy or in somebody's transaction, a block that was left open inside, a log of
    queries that wants to show BEGIN. That both leave the connection in one state is tested for each
    release of Django.

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
        left_behind = connection.atomic_blocks or connection.savepoint_ids
        if connection.autocommit and _is_ours(connection) and not left_behind:
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
        alone = connection.atomic_blocks == [self] and not connection.savepoint_ids
        if not (done and alone and self._is_plain and _is_idle(connection.connection)):
            super().__exit__(kind, error, trace)
            return
        connection.atomic_blocks.pop()
        connection.in_atomic_block = False
        connection.errors_occurred = False
        connection.run_commit_hooks_on_set_autocommit_on = True
        _set_autocommit(connection, True)
        connection.run_and_clear_commit_hooks()
        connection.run_commit_hooks_on_set_autocommit_on = False


def _is_ours(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django and psycopg themselves would do nothing but set flags."""
    session = connection.connection
    return (
        _is_genuine(type(connection), type(session))  # type: ignore[arg-type]  # classes are hashable
        and _is_idle(session)
        and not connection.queries_logged
    )


@cache
def _is_genuine(connection: type, session: type) -> bool:
    """Whether what is left out is Django's and psycopg's own. A backend of others may reach its
    session another way, and a proxy for a session would keep a flag from psycopg: the work would be
    committed statement by statement."""
    return (
        _has(connection, DatabaseWrapper, "set_autocommit", "_set_autocommit")
        and _has(connection, DatabaseWrapper, "commit", "_commit")
        and _has(session, Connection, "autocommit", "set_autocommit", "commit")
    )


def _has(kind: type, whose: type, *names: str) -> bool:
    return all(getattr(kind, name, None) is getattr(whose, name) for name in names)


def _is_idle(session: Any) -> bool:
    """Whether there is nothing to commit, nor anything for which psycopg would refuse to."""
    return (
        session is not None
        and session.pgconn.transaction_status == _IDLE
        and not (session._num_transactions or session._tpc)
    )


def _set_autocommit(connection: BaseDatabaseWrapper, autocommit: bool) -> None:
    session: Any = connection.connection
    session._autocommit = connection.autocommit = autocommit
