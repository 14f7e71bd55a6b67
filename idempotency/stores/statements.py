"""The statements that every request sends, over psycopg's libpq without what its cursors do around
it.

A cursor of psycopg turns values into parameters by their types, and rows into values by theirs,
which costs as much as the database needs to claim a key. Here a statement is always the same, so
that its parameters and its row are known. The row comes in PostgreSQL's binary format, which no
setting of the session changes, its texts in UTF-8, which is what Django's sessions speak. And a
statement can take COMMIT along, in one message, so that completing a key and committing the work
are one round trip. psycopg can do that too, with a statement bound on the client, which the server
parses and plans each time, or with its pipeline, which costs in Python what it saves.

Django's wrapper goes around it as ever: ``execute_wrapper``, the log of queries, its errors. Of
psycopg's private parts it uses ``_start_query``, so that a transaction begins where psycopg would
begin it, and its book of prepared statements: psycopg has the server forget all of them after a
rollback, ours too.
"""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar, NamedTuple

from psycopg import Connection, DatabaseError, NotSupportedError, capabilities, generators
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

#: A value as it goes over the wire; None is NULL.
Wire = bytes | None

#: Whether COMMIT can go along: libpq 14 brought pipelines.
CAN_COMMIT = capabilities.has_pipeline()

_OURS = b"idempotency_"
_numbers = count()
_UNKNOWN_STATEMENT = b"26000"
_WELL = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class _Sent(NamedTuple):
    """What Django's log of queries reads of a cursor."""

    query: bytes


class StatementCursor:
    """Sends one statement, once, and reads its one row.

    As psycopg does, it has the server prepare what was sent ``prepare_threshold`` times, and
    nothing where that is None, as behind a pooler that hands sessions around.
    """

    statement: ClassVar[str]
    #: What the name of the prepared statement begins with: ``idempotency_…``.
    name: ClassVar[bytes]
    #: Of the parameters. A list: psycopg 3.2 takes no other sequence.
    formats: ClassVar[list[Format]]
    #: Whether COMMIT follows in the same message. The server skips it when the statement fails, and
    #: Django's own COMMIT later finds no transaction and sends nothing.
    commits: ClassVar[bool] = False

    #: What an ``execute_wrapper`` may want to know of a cursor.
    rowcount: ClassVar[int] = 1
    description: ClassVar[None] = None

    def __init__(self, connection: Connection[Any], parameters: list[Wire]) -> None:
        self.connection = connection
        #: They do not go through Django, whose log would show an answer's body, and which could not
        #: bind them to ``$1``.
        self._parameters = parameters
        #: The answer; empty as long as nothing was sent.
        self.row: tuple[Wire, ...] = ()
        self._query = _Sent(self.statement.encode())

    def execute(self, query: str) -> None:
        """Send the statement; ``row`` is its answer. One that an ``execute_wrapper`` has changed,
        say by a comment that names its trace, is sent as it came, and not prepared.

        Raises what the statement, or the COMMIT, came to. Where the session breaks, nobody here can
        know whether the transaction was committed.
        """
        session = self.connection
        if session.pgconn.pipeline_status != PipelineStatus.OFF:
            raise NotSupportedError("A key cannot be claimed or completed inside a pipeline.")
        with session.lock:
            answers = self._wait(query)
            if _failed(answers) and self._was_forgotten(answers[0]):
                answers = self._wait(query)
        for answer in answers:
            if answer.status not in _WELL:
                raise error_from_result(answer)
        row = answers[0]
        self.row = tuple([row.get_value(0, column) for column in range(row.nfields)])

    def _wait(self, query: str) -> list[PGresult]:
        exchange = self._exchange(query)
        try:
            return self.connection.wait(exchange)
        finally:
            # What a signal handler raises (Celery's soft time limit) leaves it in the middle.
            exchange.close()

    def _exchange(self, query: str) -> PQGen[list[PGresult]]:
        """The server's answers, to the statement and to COMMIT; or the first that it refused."""
        answers: list[PGresult] = []
        session = self.connection
        try:
            if not session._autocommit:
                # BEGIN, where it is due: work that has sent nothing has begun nothing.
                yield from session._start_query()
            prepared = self._prepared if query == self.statement else None
            if prepared is None and self._is_due(query):
                prepared = yield from self._prepare(answers)
            if not answers:
                yield from self._send(query, prepared, answers)
        except DatabaseError:
            session.pgconn.finish()
            # The server may have said why before it hung up.
            if not _failed(answers):
                raise
        except BaseException:
            # What is still to come would be taken for the answer to the next statement.
            session.pgconn.finish()
            raise
        return answers

    def _send(self, query: str, prepared: bytes | None, answers: list[PGresult]) -> PQGen[None]:
        session = self.connection.pgconn
        if self.commits:
            session.enter_pipeline_mode()
        if prepared is not None:
            session.send_query_prepared(prepared, self._parameters, self.formats, Format.BINARY)
        else:
            session.send_query_params(
                query.encode(),
                self._parameters,
                param_formats=self.formats,
                result_format=Format.BINARY,
            )
        if not self.commits:
            answers += yield from generators.execute(session)
            return
        session.send_query_params(b"COMMIT", None)
        session.pipeline_sync()
        yield from generators.send(session)
        answers += yield from generators.fetch_many(session)
        answers += yield from generators.fetch_many(session)
        yield from generators.fetch_many(session)  # of the sync
        session.exit_pipeline_mode()

    @property
    def _prepared(self) -> bytes | None:
        """The name under which the session knows the statement, by psycopg's book."""
        return self.connection._prepared._names.get((self.name, ()))

    def _is_due(self, query: str) -> bool:
        threshold = self.connection.prepare_threshold
        if threshold is None or query != self.statement:
            return False
        times: dict[bytes, int] = self.connection.__dict__.setdefault("_idempotency_times", {})
        times[self.name] = times.get(self.name, 0) + 1
        return times[self.name] > threshold

    def _prepare(self, answers: list[PGresult]) -> PQGen[bytes | None]:
        """Have the server prepare the statement. Should it refuse, that is its answer."""
        # A new name each time, as psycopg's: the server may still have it under an old one.
        name = b"%s_%d" % (self.name, next(_numbers))
        self.connection.pgconn.send_prepare(name, self.statement.encode())
        (answer,) = yield from generators.execute(self.connection.pgconn)
        if answer.status not in _WELL:
            answers.append(answer)
            return None
        self.connection._prepared._names[self.name, ()] = name
        self.connection._prepared._rotate()
        self.connection.__dict__["_idempotency_times"][self.name] = 0
        return name

    def _was_forgotten(self, answer: PGresult) -> bool:
        """Whether the session has forgotten what it had prepared: somebody said DISCARD ALL. True
        where nothing was lost with the statement, because it ran in no transaction."""
        if answer.error_field(DiagnosticField.SQLSTATE) != _UNKNOWN_STATEMENT:
            return False
        prepared = self.connection._prepared._names
        for key in [key for key, name in prepared.items() if name.startswith(_OURS)]:
            del prepared[key]
        return self.connection.pgconn.transaction_status == TransactionStatus.IDLE


def _failed(answers: list[PGresult]) -> bool:
    return bool(answers) and answers[-1].status not in _WELL
