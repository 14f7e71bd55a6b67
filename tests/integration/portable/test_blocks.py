"""The work's outermost block on PostgreSQL and Django's own: whatever happens inside, both end the
same way and leave the connection in the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.transaction import Atomic
from django.test.utils import CaptureQueriesContext

from idempotency.stores.blocks import WorkBlock
from tests.integration.portable.api import terminate

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

Happen = Callable[[], object]


def djangos() -> Atomic:
    return transaction.atomic(durable=True)


def ours() -> Atomic:
    # Not the proxy: threads and tests replace what it stands for.
    return WorkBlock(transaction.get_connection(), durable=True)


def state() -> dict[str, Any]:
    """Every flag and list of Django's connection, by whatever names this release has, and what
    psycopg thinks of the session."""
    wrapper = transaction.get_connection()
    kept = {
        name: list(value) if isinstance(value, list) else value
        for name, value in vars(wrapper).items()
        if isinstance(value, (bool, int, list, type(None)))
    }
    kept["atomic_blocks"] = len(wrapper.atomic_blocks)
    kept["run_on_commit"] = len(wrapper.run_on_commit)
    kept["execute_wrappers"] = len(wrapper.execute_wrappers)
    del kept["savepoint_state"]  # counts savepoints
    session = wrapper.connection
    if session is not None:
        kept["psycopg"] = session.autocommit, session.pgconn.transaction_status
    return kept


def nothing() -> None: ...


def write() -> None:
    Group.objects.create(name="written")


def commit_in_a_message() -> None:
    """As the completion of a key does."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO auth_group (name) VALUES ('written'); COMMIT")


def raise_at_once() -> None:
    raise ValueError


def raise_an_error() -> None:
    write()
    raise ValueError


def mark_at_once() -> None:
    transaction.set_rollback(True)


def mark() -> None:
    write()
    transaction.set_rollback(True)


def swallow() -> None:
    write()
    with contextlib.suppress(IntegrityError):
        write()


def write_inside() -> None:
    with transaction.atomic():
        write()


def fail_inside() -> None:
    with contextlib.suppress(ValueError), transaction.atomic():
        raise_an_error()


def fail_when_committed() -> None:
    write()
    transaction.on_commit(raise_an_error)


def fail_when_committed_in_a_message() -> None:
    commit_in_a_message()
    transaction.on_commit(raise_an_error)


#: Whoever holds them keeps them open.
left_open: list[Any] = []


def leave_a_savepoint_open() -> None:
    write()
    left_open.append(transaction.atomic())
    left_open[-1].__enter__()


def leave_a_block_open() -> None:
    left_open.append(transaction.atomic(savepoint=False))
    left_open[-1].__enter__()
    commit_in_a_message()


def leave_a_transaction_of_psycopg_open() -> None:
    left_open.append(connection.connection.transaction())
    left_open[-1].__enter__()
    commit_in_a_message()


def close() -> None:
    write()
    connection.close()


def connect_anew() -> None:
    close()
    connection.connect()


def lose_the_session() -> None:
    write()
    terminate(connection.connection.info.backend_pid)


def lose_the_session_before_it_is_used() -> None:
    terminate(connection.connection.info.backend_pid)


HAPPENINGS: list[Happen] = [
    nothing,
    write,
    commit_in_a_message,
    raise_at_once,
    raise_an_error,
    mark_at_once,
    mark,
    swallow,
    write_inside,
    fail_inside,
    fail_when_committed,
    fail_when_committed_in_a_message,
    leave_a_savepoint_open,
    leave_a_block_open,
    leave_a_transaction_of_psycopg_open,
    close,
    connect_anew,
    lose_the_session,
    lose_the_session_before_it_is_used,
]


def ended(block: Callable[[], Atomic], happen: Happen) -> dict[str, Any]:
    """What a block came to, and what it left."""
    Group.objects.all().delete()
    heard: list[str] = []
    raised = ""
    # Of what happened before.
    connection.errors_occurred, connection.rollback_exc = True, None
    connection.commit_on_exit, connection.needs_rollback = False, True
    before = state()
    try:
        with block():
            transaction.on_commit(lambda: heard.append("committed"))
            inside = state()
            happen()
    except Exception as error:
        raised = type(error).__name__
    after = state()
    left_open.clear()
    connection.close()
    connection.connect()  # forgets what was left open
    names = list(Group.objects.values_list("name", flat=True))
    return {
        "before": before,
        "inside": inside,
        "after": after,
        "raised": raised,
        "heard": heard,
        "written": names,
    }


def without_begin(told: dict[str, Any]) -> dict[str, Any]:
    """Ours waits for the first statement, to send BEGIN with it."""
    assert told["inside"]["execute_wrappers"] == 1
    told["inside"]["execute_wrappers"] = 0
    return told


@pytest.mark.parametrize("happen", HAPPENINGS, ids=lambda happen: happen.__name__)
def test_both_come_to_the_same(happen: Happen) -> None:
    djangos_end = ended(djangos, happen)
    assert without_begin(ended(ours, happen)) == djangos_end


@pytest.mark.parametrize("happen", HAPPENINGS, ids=lambda happen: happen.__name__)
def test_the_log_of_queries_changes_nothing_and_shows_both_ends(happen: Happen) -> None:
    with CaptureQueriesContext(connection) as djangos_log:
        djangos_end = ended(djangos, happen)
    with CaptureQueriesContext(connection) as our_log:
        assert without_begin(ended(ours, happen)) == djangos_end
    assert ends(our_log) == ends(djangos_log)


def ends(log: CaptureQueriesContext) -> list[str]:
    sent = [query["sql"] for query in log.captured_queries]
    return [text for text in sent if text in ("BEGIN", "COMMIT", "ROLLBACK")]


@pytest.fixture
def manual() -> Iterator[None]:
    """Somebody manages transactions himself."""
    transaction.set_autocommit(False)
    yield
    connection.close()


@pytest.mark.parametrize(
    "happen", [nothing, write, raise_an_error], ids=lambda happen: happen.__name__
)
@pytest.mark.usefixtures("manual")
def test_where_autocommit_is_off_the_transaction_stays_whose_it_was(happen: Happen) -> None:
    told = []
    for block in (djangos, ours):
        with contextlib.suppress(ValueError), block():
            happen()
        told.append((state(), Group.objects.filter(name="written").exists()))
        transaction.rollback()
    assert told[0] == told[1]


def test_inside_another_block_it_is_a_savepoint() -> None:
    told = []
    for block in (transaction.atomic, lambda: WorkBlock(transaction.get_connection(), False)):
        with transaction.atomic():
            with contextlib.suppress(ValueError), block():
                raise_an_error()
            told.append((state(), Group.objects.count()))
    assert told[0] == told[1]


@pytest.mark.parametrize("block", [djangos, ours])
def test_a_session_behind_a_proxy_rolls_back_all_the_same(block: Callable[[], Atomic]) -> None:
    """As a pool of others hands it out."""

    class Proxy:
        def __init__(self, session: Any) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        @property
        def autocommit(self) -> bool:
            return bool(self._session.autocommit)

        @autocommit.setter
        def autocommit(self, autocommit: bool) -> None:
            self._session.autocommit = autocommit

    connection.ensure_connection()
    connection.connection = Proxy(connection.connection)
    try:
        with contextlib.suppress(ValueError), block():
            raise_an_error()
        assert not Group.objects.exists()
        with block():
            write()
        assert Group.objects.count() == 1
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["commit", "_commit", "set_autocommit", "_set_autocommit"])
def test_a_backend_that_does_it_its_own_way_is_asked(name: str) -> None:
    asked = []

    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return getattr(DatabaseWrapper, name)(self, *args, **kwargs)

    backend = type("Backend", (DatabaseWrapper,), {name: own})
    usual = connections["default"]
    connections["default"] = backend(usual.settings_dict, "default")
    try:
        connection.ensure_connection()
        asked.clear()
        with ours():
            commit_in_a_message()
        connection.close()
    finally:
        connections["default"] = usual
    assert asked


def test_it_refuses_to_be_durable_inside_another_block() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), ours():
        pass


def test_a_session_that_died_before_the_block_is_replaced_where_health_is_checked() -> None:
    wrapper = transaction.get_connection()
    wrapper.settings_dict["CONN_HEALTH_CHECKS"] = True
    try:
        for block in (djangos, ours):
            wrapper.ensure_connection()
            wrapper.health_check_enabled, wrapper.health_check_done = True, False
            terminate(connection.connection.info.backend_pid)
            with block():
                Group.objects.create(name=block.__name__)
    finally:
        wrapper.settings_dict["CONN_HEALTH_CHECKS"] = False
        connection.close()
    assert Group.objects.count() == 2
