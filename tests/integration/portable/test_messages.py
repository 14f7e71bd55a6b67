"""What shares a message with what on PostgreSQL: BEGIN with the work's first statement, COMMIT with
the completion; and what that must not change."""

from __future__ import annotations

import gc
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import (
    DatabaseError,
    DataError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.response import Response

from idempotency.core.decisions import Replay
from idempotency.core.errors import LeaseLost
from idempotency.core.responses import RecordedResponse
from idempotency.engine import sqlstate
from idempotency.models import IdempotencyKey
from idempotency.stores import transactions
from idempotency.stores.postgres import PostgresStore, _CompleteAndCommitCursor
from idempotency.stores.statements import StatementCursor
from tests.integration.portable import views
from tests.integration.portable.api import (
    MARKER,
    Api,
    Gate,
    Killed,
    assert_replay,
    background,
    key_of,
    terminate,
    until,
)
from tests.integration.portable.conformance.harness import ANSWER, TTL, Key

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def key(transactional_db: None) -> Key:
    return Key(PostgresStore("default"))


def sent_by(call: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured.captured_queries]


def test_begin_goes_with_the_first_statement_and_commit_with_the_completion(api: Api) -> None:
    sent = sent_by(lambda: api.post("/things", {}, "k"))

    own = [text for text in sent if text.startswith("BEGIN; ")]
    assert len(own) == 1
    assert own[0].startswith('BEGIN; INSERT INTO "auth_group"')
    assert "idempotency_complete" in sent[sent.index(own[0]) + 1]
    assert connection.execute_wrappers == []


def test_without_psycopg_3_a_transaction_begins_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "idempotency.stores.blocks", None)
    transactions._block_of.cache_clear()
    try:
        with transactions.Transaction(connection, "a test"):
            assert connection.execute_wrappers == []
    finally:
        transactions._block_of.cache_clear()


# What comes first in the work, whatever it is, is in the work's transaction


def copy() -> None:
    with connection.cursor() as cursor, cursor.copy("COPY auth_group (name) FROM STDIN") as rows:
        rows.write("copied\n")


def many() -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO auth_group (name) VALUES (%s)", [["one"], ["two"]])


def composed() -> None:
    insert = psycopg.sql.SQL("INSERT INTO {} (name) VALUES ('composed')")
    with connection.cursor() as cursor:
        cursor.execute(insert.format(psycopg.sql.Identifier("auth_group")))


def by_psycopg_itself() -> None:
    connection.connection.execute("INSERT INTO auth_group (name) VALUES ('direct')")


def read_on_the_server() -> None:
    list(Group.objects.iterator())
    Group.objects.create(name="after it")


def nested() -> None:
    with transaction.atomic():
        Group.objects.create(name="nested")


def two_at_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO auth_group (name) VALUES ('1'); SELECT 7")
        assert cursor.nextset()
        assert cursor.fetchone() == (7,)


def pipelined() -> None:
    with connection.connection.pipeline(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO auth_group (name) VALUES ('pipelined')")


FIRST = [
    pipelined,
    copy,
    many,
    composed,
    by_psycopg_itself,
    read_on_the_server,
    nested,
    two_at_once,
]


@pytest.fixture(params=FIRST, ids=lambda first: first.__name__)
def first(request: pytest.FixtureRequest, api: Api) -> None:
    views.before_work = request.param


@pytest.mark.usefixtures("first")
def test_work_that_fails_leaves_nothing_of_what_it_did_first(api: Api) -> None:
    def fail(request: Any) -> Response:
        raise ZeroDivisionError

    views.behaviour = fail
    assert api.post("/things", {}, "k").status_code == 500

    assert views.effects() == 0
    assert key_of("k").state == "failed"
    assert connection.execute_wrappers == []


@pytest.mark.usefixtures("first")
def test_work_that_ends_keeps_what_it_did_first(api: Api) -> None:
    first = api.post("/things", {}, "k")

    assert first.status_code == 201
    assert views.effects() >= 2
    assert_replay(api.post("/things", {}, "k"), first)
    assert connection.get_autocommit()


def test_rows_are_read_one_by_one_and_locked_after_the_first_statement(api: Api) -> None:
    def lock(request: Any) -> Response:
        rows = Group.objects.select_for_update().iterator(chunk_size=1)
        return Response({"names": len(list(rows))}, status=201)

    views.behaviour = lock

    assert api.post("/things", {}, "k").json() == {"names": 1}


def test_work_that_sends_nothing_is_kept_without_a_word_from_the_server(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    connection.ensure_connection()
    connection.connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
    monkeypatch.setattr(views, "work", lambda request: Response({}, status=201))

    first = api.post("/things", {}, "k")

    assert first.status_code == 201
    assert_replay(api.post("/things", {}, "k"), first)
    assert said == []


def test_an_isolation_level_of_the_session_begins_as_psycopg_begins(api: Api) -> None:
    levels: list[str] = []

    def look() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            levels.extend(cursor.fetchone())

    views.before_work = look
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        sent = sent_by(lambda: api.post("/things", {}, "k"))
    finally:
        connection.close()

    assert levels == ["repeatable read"]
    assert "BEGIN ISOLATION LEVEL REPEATABLE READ; SHOW transaction_isolation" in sent
    assert key_of("k").state == "succeeded"


# An error of the first statement that the work swallows


def swallowing(statement: str, parameters: list[Any] | None = None) -> Callable[[], None]:
    def run() -> None:
        with connection.cursor() as cursor, pytest.raises(DatabaseError):
            cursor.execute(statement, parameters)

    return run


@pytest.mark.parametrize("statement", ["SELEKT 1", "SELECT 1/0"], ids=["unreadable", "failing"])
def test_one_that_the_server_refused_fails_the_work(
    api: Api, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    views.before_work = swallowing(statement)

    with caplog.at_level("ERROR"):
        assert api.post("/things", {}, "k").status_code == 500

    assert views.effects() == 0
    assert key_of("k").state == "failed"
    assert {"SELEKT 1": "syntax error", "SELECT 1/0": "aborted"}[statement] in caplog.text


def test_one_that_never_left_the_process_fails_nothing(api: Api) -> None:
    views.before_work = swallowing("SELECT %s", [object()])

    assert api.post("/things", {}, "k").status_code == 201

    assert views.effects() == 1


def test_what_a_wrapper_of_the_work_sends_first_is_in_its_transaction(api: Api) -> None:
    seen: list[str] = []

    def audit(execute: Any, sql: str, *arguments: Any) -> Any:
        seen.append(sql.partition(" (")[0])
        connection.connection.execute("INSERT INTO auth_group (name) VALUES ('audit')")
        return execute(sql, *arguments)

    def watched() -> None:
        with connection.execute_wrapper(audit):
            Group.objects.create(name="watched")
        assert connection.execute_wrappers == []

    def fail(request: Any) -> Response:
        raise ZeroDivisionError

    views.before_work, views.behaviour = watched, fail
    assert api.post("/things", {}, "k").status_code == 500
    assert seen == ['INSERT INTO "auth_group"']
    assert views.effects() == 0

    views.behaviour = None
    assert api.post("/things", {}, "k").status_code == 201
    assert views.effects() == 3


# The statements of the store


def test_a_session_whose_answer_was_not_read_is_not_used_again(
    key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(session: Any) -> Any:
        raise Killed

    lease = key.won()
    monkeypatch.setattr("idempotency.stores.statements.generators.fetch_many", interrupt)
    with transaction.atomic():
        with pytest.raises(Killed):
            key.store.complete(lease, ANSWER, TTL, commit=True)
        assert connection.connection.closed
        transaction.set_rollback(True)

    # It was sent, so it may well have come about: the retry reads what did.
    until(lambda: key.row.state == "succeeded")


def test_a_claim_that_is_the_first_of_a_transaction_is_rolled_back_with_it(key: Key) -> None:
    with transaction.atomic():
        key.won()
        transaction.set_rollback(True)

    assert not key.exists


def test_a_lost_lease_commits_nothing_and_leaves_the_session_in_order(key: Key) -> None:
    lease = key.won()
    IdempotencyKey.objects.update(owner=uuid.uuid4())

    def work() -> None:
        with transaction.atomic():
            Group.objects.create(name="lost")
            key.store.complete(lease, ANSWER, TTL, commit=True)

    with pytest.raises(LeaseLost):
        work()

    assert not Group.objects.exists()
    assert connection.get_autocommit()


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements ORDER BY name")
        names = [name for (name,) in cursor.fetchall() if name.startswith("idempotency")]
        return [name.rpartition("_")[0] for name in names]


@pytest.fixture
def session(transactional_db: None) -> Iterator[Any]:
    connection.close()
    connection.ensure_connection()
    yield connection.connection
    connection.close()


def run_often(api: Api, times: int = 4) -> None:
    for number in range(times):
        assert api.post("/things", {}, f"k{number}").status_code == 201


def test_the_session_of_another_thread_is_refused(key: Key) -> None:
    whose = connections["default"]
    whose.ensure_connection()

    def claim() -> None:
        connections["default"] = whose
        key.claim()

    with background(claim) as claimed, pytest.raises(DatabaseError, match="thread"):
        claimed.result()
    assert not key.exists


def test_the_session_has_them_prepared_once_they_came_often_enough(api: Api, session: Any) -> None:
    session.prepare_threshold = 3

    run_often(api, 3)
    assert prepared() == []
    run_often(api)

    assert prepared() == ["idempotency_claim", "idempotency_complete_and_commit"]


def test_nothing_is_prepared_where_psycopg_prepares_nothing(api: Api, session: Any) -> None:
    session.prepare_threshold = None

    run_often(api)

    assert prepared() == []


@pytest.mark.parametrize("forget", [b"DEALLOCATE ALL", b"DISCARD ALL"])
def test_what_the_session_forgot_is_prepared_anew(api: Api, session: Any, forget: bytes) -> None:
    session.prepare_threshold = 0
    run_often(api, 1)
    session.pgconn.exec_(forget)

    run_often(api)

    assert views.effects() == 4
    assert len(prepared()) == 2


def test_a_completion_that_was_forgotten_under_way_is_one_failure(api: Api, session: Any) -> None:
    def forget(request: Any) -> Response:
        session.pgconn.exec_(b"DEALLOCATE ALL")
        return Response({}, status=201)

    session.prepare_threshold = 0
    run_often(api, 1)
    views.behaviour = forget
    assert api.post("/things", {}, "k").status_code == 500
    views.behaviour = None

    assert api.post("/things", {}, "k").status_code == 201
    assert views.effects() == 2


def test_psycopg_lets_the_session_forget_after_a_rollback(api: Api, session: Any) -> None:
    def roll_something_back() -> None:
        psycopg.Cursor(session).execute("SELECT 7", prepare=True)
        with transaction.atomic():
            Group.objects.create(name="no")
            transaction.set_rollback(True)

    session.prepare_threshold = 1
    run_often(api, 4)
    views.before_work = roll_something_back

    run_often(api, 6)


def test_a_session_that_has_it_under_an_old_name_prepares_it_anew(api: Api, session: Any) -> None:
    session.prepare_threshold = 0
    run_often(api, 1)
    session._prepared._names.clear()  # psycopg's DEALLOCATE ALL was cancelled

    run_often(api, 3)

    assert views.effects() == 3


def test_what_psycopg_is_about_to_have_forgotten_is_missed_by_nobody(
    api: Api, session: Any
) -> None:
    session.prepare_threshold = 0
    run_often(api, 1)
    session._prepared.clear()  # of which the server will hear with psycopg's next statement

    assert api.post("/things", {}, "k").status_code == 201
    assert api.post("/things", {}, "k")[MARKER] == "true"
    run_often(api, 3)


def test_psycopgs_book_does_not_grow_beyond_its_bound(api: Api, session: Any) -> None:
    session.prepare_threshold, session.prepared_max = 0, 3

    def crowd() -> None:
        for number in range(4):
            psycopg.Cursor(session).execute(f"SELECT {number}", prepare=True)

    views.before_work = crowd
    run_often(api, 6)

    assert len(session._prepared._names) <= 4


def test_why_the_server_would_not_prepare_is_what_is_heard(
    api: Api, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = _CompleteAndCommitCursor.statement.replace("complete_v1", "complete_v0")
    monkeypatch.setattr(_CompleteAndCommitCursor, "statement", unknown)
    session.prepare_threshold = 0

    with pytest.raises(ProgrammingError, match="complete_v0"):
        Api(Client()).post("/things", {}, "k")

    assert not session.closed
    assert views.effects() == 0


def test_why_the_server_hung_up_is_what_is_heard(key: Key) -> None:
    lease = key.won()

    def work() -> None:
        with transaction.atomic():
            Group.objects.create(name="lost")
            terminate(connection.connection.info.backend_pid)
            key.store.complete(lease, ANSWER, TTL, commit=True)

    with pytest.raises(OperationalError) as caught:
        work()

    assert sqlstate(caught.value) == "57P01"


def test_without_pipelines_django_commits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotency.stores.postgres.CAN_COMMIT", False)
    monkeypatch.delattr("idempotency.stores.postgres._CompleteAndCommitCursor")

    first = api.post("/things", {}, "k")

    assert first.status_code == 201
    assert_replay(api.post("/things", {}, "k"), first)
    assert views.effects() == 1


def test_where_django_binds_on_the_server_its_log_is_written(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    monkeypatch.setitem(connection.features.__dict__, "uses_server_side_binding", True)
    try:
        sent = sent_by(lambda: api.post("/things", {}, "k"))
    finally:
        connection.close()

    assert key_of("k").state == "succeeded"
    assert any("idempotency_complete" in text for text in sent)


def test_a_comment_of_a_wrapper_is_sent(api: Api, session: Any) -> None:
    session.prepare_threshold = 0

    def name_trace(execute: Any, sql: str, *arguments: Any) -> Any:
        return execute(f"{sql} /* traceparent=00-1 */", *arguments)

    with connection.execute_wrapper(name_trace):
        sent = sent_by(lambda: api.post("/things", {}, "k"))
        assert api.post("/things", {}, "k")[MARKER] == "true"

    assert prepared() == []
    assert views.effects() == 1
    assert any("idempotency_claim" in text for text in sent)


def test_a_wrapper_may_claim_a_key_of_its_own_and_look_at_the_cursor(key: Key) -> None:
    claimed: list[Any] = []
    seen: list[Any] = []

    def claim_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not claimed:
            claimed.append("inner")
            Key(key.store, "inner").won()
        result = execute(sql, params, many, context)
        seen.append((context["cursor"].rowcount, context["cursor"].description))
        return result

    with connection.execute_wrapper(claim_first):
        assert key.won().scope == key.scope

    assert key.exists
    assert (1, None) in seen


def test_a_statement_that_a_wrapper_keeps_back_has_no_answer(key: Key) -> None:
    Key(key.store, "a").completed()
    assert isinstance(Key(key.store, "a").claim(), Replay)

    with connection.execute_wrapper(lambda *_: None), pytest.raises(RuntimeError, match="kept"):
        Key(key.store, "b").claim()


def test_an_answer_is_not_kept_in_the_session(key: Key) -> None:
    key.completed(RecordedResponse(201, (), b"A secret of one account"))
    assert isinstance(key.claim(), Replay)

    kept = [held for held in gc.get_objects() if issubclass(type(held), StatementCursor)]
    assert [cursor for cursor in kept if cursor.connection is connection.connection] == []


def test_a_key_is_not_claimed_in_a_pipeline(key: Key) -> None:
    connection.ensure_connection()
    with (
        pytest.raises(NotSupportedError, match="pipeline"),
        connection.connection.pipeline(),
    ):
        key.claim()

    assert not key.exists


def waits_for_a_lock(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone() == ("Lock",))


def test_a_time_limit_that_strikes_while_it_waits_closes_the_session(key: Key) -> None:
    """As Celery's soft one does: raised by a signal's handler, where the answer is waited for."""
    lease, gate = key.won(), Gate()
    pid = connection.connection.info.backend_pid

    def hold() -> None:
        with transaction.atomic():
            IdempotencyKey.objects.select_for_update().get()
            gate()
            until(lambda: waits_for_a_lock(pid))
            os.kill(os.getpid(), signal.SIGUSR2)

    def strike(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR2, strike)
    try:
        with background(hold), transaction.atomic():
            gate.wait_until_reached()
            gate.open()
            with pytest.raises(TimeoutError) as struck:
                key.store.complete(lease, ANSWER, TTL, commit=True)
            assert connection.connection.closed, struck
            transaction.set_rollback(True)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_text_with_nul_is_refused_and_not_cut_short(key: Key) -> None:
    with pytest.raises(DataError):
        Key(key.store, tenant="acct_1\x00acct_2").claim()

    assert not IdempotencyKey.objects.exists()


def test_a_statement_unknown_to_the_server_says_so(key: Key) -> None:
    def rename(execute: Any, sql: str, *arguments: Any) -> Any:
        return execute(sql.replace("claim_v1", "claim_v0"), *arguments)

    with connection.execute_wrapper(rename), pytest.raises(ProgrammingError, match="claim_v0"):
        key.claim()
