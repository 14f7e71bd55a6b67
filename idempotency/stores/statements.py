"""The statements that every request sends, over psycopg's libpq without what its cursors do around
it.

A cursor of psycopg turns values into parameters by their types, remembers what it has prepared, and
makes rows by theirs. That costs as much as the database needs to claim a key. Here a statement is
always the same, so that its parameters and its row are known: text as PostgreSQL reads and writes
it. And it can take COMMIT along, in one message, so that completing a key and committing the work
are one round trip. psycopg can do that too, with a statement bound on the client, which the server
parses and plans each time, or with its pipeline, which costs in Python what it saves.

Django's wrapper goes around it as ever: ``execute_wrapper``, the log of queries, its errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from psycopg import Connection, RawCursor, generators
from psycopg.abc import PQGen
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

#: A value as it goes over the wire; None is NULL.
Wire = bytes | None

_WELL = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class _Sent(NamedTuple):
    """What Django's log of queries reads of a cursor."""

    query: bytes


class StatementCursor(RawCursor[Any]):
    """Sends one statement and reads its one row.

    As psycopg does, it has the server prepare what was sent ``prepare_threshold`` times, and
    nothing where that is None, as behind a pooler that hands sessions around.
    """

    statement: ClassVar[str]
    #: Of the prepared statement: a session has one cursor of each kind.
    name: ClassVar[bytes]
    #: Of the parameters.
    formats: ClassVar[Sequence[Format]]
    #: Whether COMMIT follows in the same message. The server skips it when the statement fails, and
    #: Django's own COMMIT later finds no transaction and sends nothing.
    commits: ClassVar[bool] = False

    def __init__(self, connection: Connection[Any]) -> None:
        super().__init__(connection)
        self._query = _Sent(self.statement.encode())  # type: ignore[assignment]
        self._times = 0
        self._prepared = False
        self._row: tuple[Wire, ...] = ()

    def execute(self, query: Any, params: Any = None, **options: Any) -> StatementCursor:
        """Send the statement with its parameters. One that an ``execute_wrapper`` has changed, say
        by a comment that names its trace, is sent as it came, and not prepared.

        Raises what the statement, or the COMMIT, came to. Where the session breaks, nobody here can
        know whether the transaction was committed.
        """
        session = self._conn
        with session.lock:
            answers = session.wait(self._exchange(query, params))
        for answer in answers:
            self._demand(answer)
        row = answers[0]
        self._row = tuple([row.get_value(0, column) for column in range(row.nfields)])
        return self

    def fetchone(self) -> tuple[Wire, ...]:
        return self._row

    def _exchange(self, query: str, parameters: list[Wire] | None) -> PQGen[list[PGresult]]:
        session = self._pgconn
        try:
            # BEGIN, where it is due: work that has sent nothing has begun nothing.
            yield from self._conn._start_query()
            prepared = query == self.statement and (yield from self._is_prepared())
            if not self.commits:
                self._send(query, parameters, prepared)
                answers: list[PGresult] = yield from generators.execute(session)
                return answers
            session.enter_pipeline_mode()
            self._send(query, parameters, prepared)
            session.send_query_params(b"COMMIT", None)
            session.pipeline_sync()
            yield from generators.send(session)
            answers = yield from generators.fetch_many(session)
            answers += yield from generators.fetch_many(session)
            yield from generators.fetch_many(session)  # of the sync
            session.exit_pipeline_mode()
            return answers
        except BaseException:
            # What is still to come would be taken for the answer to the next statement.
            session.finish()
            raise

    def _send(self, query: str, parameters: list[Wire] | None, prepared: bool) -> None:
        formats = self.formats if parameters else None
        if prepared:
            self._pgconn.send_query_prepared(self.name, parameters, formats)
        else:
            self._pgconn.send_query_params(query.encode(), parameters, param_formats=formats)

    def _is_prepared(self) -> PQGen[bool]:
        """Whether the session knows the statement, which it is told of once it is due."""
        if self._prepared:
            return True
        self._times += 1
        threshold = self._conn.prepare_threshold
        if threshold is None or self._times <= threshold:
            return False
        self._pgconn.send_prepare(self.name, self.statement.encode())
        yield from generators.execute(self._pgconn)
        # Should it have failed, the statement says so: it is unknown.
        self._prepared = True
        return True

    def _demand(self, answer: PGresult) -> None:
        if answer.status in _WELL:
            return
        error = error_from_result(answer)
        if isinstance(error, InvalidSqlStatementName):
            # Somebody said DISCARD ALL. The next one is prepared anew.
            self._prepared = False
        raise error
