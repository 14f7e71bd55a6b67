"""BEGIN and the first statement of a transaction in one message to PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor
from psycopg.pq import PipelineStatus, TransactionStatus


class BeginWithFirst:
    """Sends BEGIN in the message of the transaction's first statement.

    psycopg sends it by itself before that, and the round trip is a tenth of what protecting a small
    view costs. Only Django's plain cursor takes it, which binds on the client: what else may come
    first (COPY, a server-side cursor, ``executemany``, a composed statement, a pipeline, psycopg
    used directly) passes by, and psycopg begins the transaction as ever.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        connection.execute_wrappers.append(self)

    def withdraw(self) -> None:
        """Leave the connection as it was."""
        if self in self._connection.execute_wrappers:
            self._connection.execute_wrappers.remove(self)

    def __call__(
        self,
        execute: Callable[..., Any],
        sql: Any,
        params: Any,
        many: bool,
        context: dict[str, Any],
    ) -> Any:
        # A wrapper inside of this one may send statements of its own first.
        innermost = self._connection.execute_wrappers[-1:] == [self]
        self.withdraw()
        cursor = context["cursor"].cursor
        plain = isinstance(cursor, ClientCursor) and isinstance(sql, str) and not many
        if not (innermost and plain and _begins_now(cursor.connection)):
            return execute(sql, params, many, context)
        # Not Django's, which a pool may have put a proxy in place of.
        session: Any = cursor.connection
        begin = session._get_tx_start_command().decode()
        session._autocommit = True
        try:
            result = execute(f"{begin}; {sql}", params, many, context)
        except Exception as error:
            self._fail(session, error)
            raise
        finally:
            # Its own setter refuses inside a transaction. Left on, a server-side cursor would be
            # WITH HOLD, which FOR UPDATE forbids.
            session._autocommit = False
        # The result of the statement is the second.
        cursor.nextset()
        return result

    def _fail(self, session: Any, error: Exception) -> None:
        """A statement that the server could not even read takes BEGIN along. To the work its
        transaction has failed all the same; one that never left this process fails nothing."""
        if getattr(error.__cause__, "sqlstate", None) and not _in_transaction(session):
            self._connection.set_rollback(True)
            self._connection.rollback_exc = error  # type: ignore[attr-defined]  # unknown to the stubs


def _begins_now(session: Any) -> bool:
    """Whether psycopg would send BEGIN before this statement, and wait for it."""
    in_pipeline = session.pgconn.pipeline_status != PipelineStatus.OFF
    return not (session.autocommit or in_pipeline or _in_transaction(session))


def _in_transaction(session: Any) -> bool:
    return bool(session.pgconn.transaction_status != TransactionStatus.IDLE)
