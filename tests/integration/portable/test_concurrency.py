"""Contract cases 29 to 31 and 33 inside one process, and the budget of statements."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from idempotency.models import IdempotencyKey
from tests.integration.portable import views
from tests.integration.portable.api import (
    MARKER,
    PATIENCE,
    Api,
    Gate,
    assert_problem,
    assert_replay,
    background,
    end_lease,
    key_of,
    keys,
    statements,
    together,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])


def test_case_29_of_many_identical_requests_one_executes(api: Api, each_store: str) -> None:
    answers = together([lambda: api.post("/things", {"amount": 1}, "k")] * 20)

    assert views.effects() == 1
    fresh = [answer for answer in answers if answer.status_code == 201 and MARKER not in answer]
    assert len(fresh) == 1
    for answer in answers:
        if answer.status_code == 201:
            assert answer.content == fresh[0].content
        else:
            assert_problem(answer, 409, "idempotency_key_in_use", retry="same_key")
            assert int(answer["Retry-After"]) >= 1


def test_case_30_distinct_keys_at_once_all_execute(api: Api, each_store: str) -> None:
    def request(number: int) -> Callable[[], Any]:
        return lambda: api.post("/things", {"amount": 1}, f"k{number}")

    answers = together([request(number) for number in range(20)])

    assert Counter(answer.status_code for answer in answers) == {201: 20}
    assert views.effects() == keys() == 20


@pytest.fixture
def losing_the_race(monkeypatch: pytest.MonkeyPatch, api: Api) -> Callable[[], Any]:
    """Between this request's look and its insert, another one claims, works and commits."""
    from idempotency.stores.database import DatabaseStore

    look = DatabaseStore._look
    rival: list[Any] = []

    def look_and_be_slow(store: Any, condition: Any) -> Any:
        row = look(store, condition)
        if row is None and not rival:
            rival.append(None)
            with background(lambda: api.post("/things", {"amount": 1}, "k")) as other:
                rival[0] = other.result()
        return row

    monkeypatch.setattr(DatabaseStore, "_look", look_and_be_slow)
    return lambda: rival[0]


def test_case_31_losing_the_insert_race_is_the_replay(
    api: Api, configure: Any, losing_the_race: Callable[[], Any]
) -> None:
    configure(STORE="idempotency.stores.database.DatabaseStore")

    loser = api.post("/things", {"amount": 1}, "k")

    assert_replay(loser, losing_the_race())
    assert views.effects() == 1


def test_case_31_losing_the_insert_race_to_another_request_is_a_422(
    api: Api, configure: Any, losing_the_race: Callable[[], Any]
) -> None:
    configure(STORE="idempotency.stores.database.DatabaseStore")

    assert_problem(api.post("/things", {"amount": 2}, "k"), 422, "idempotency_key_reused")
    assert losing_the_race().status_code == 201


#: What PostgreSQL answers to a statement that lost: raised by it, so that psycopg and Django make
#: of it what they make of the real thing.
LOST = {
    "serialization failure": "40001",
    "deadlock": "40P01",
    "lock timeout": "55P03",
    "statement timeout": "57014",
}
by_sqlstate = pytest.mark.parametrize("sqlstate", LOST.values(), ids=LOST.keys())


@contextmanager
def failing(sqlstate: str, *, when: str, times: int = 1) -> Iterator[list[str]]:
    """Let the statements that contain ``when`` fail, the first ``times`` of them."""
    failed: list[str] = []

    def execute(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if when in sql and len(failed) < times:
            failed.append(sql)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{sqlstate}'; END $$"
                )
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield failed


@pytest.mark.postgresql
@by_sqlstate
def test_case_31_a_claim_that_loses_once_is_tried_again_or_is_a_503(
    api: Api, sqlstate: str
) -> None:
    with failing(sqlstate, when="idempotency_claim") as failed:
        answer = api.post("/things", {}, "k")

    assert len(failed) == 1
    if sqlstate in ("40001", "40P01"):
        assert answer.status_code == 201
    else:
        assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
        assert int(answer["Retry-After"]) >= 1
        assert views.calls == []
        assert api.post("/things", {}, "k").status_code == 201
    assert views.effects() == 1


@pytest.mark.postgresql
def test_case_31_a_claim_that_loses_every_time_is_a_409(api: Api) -> None:
    with failing("40001", when="idempotency_claim", times=100) as failed:
        answer = api.post("/things", {}, "k")

    assert 1 < len(failed) <= 10
    assert_problem(answer, 409, "idempotency_key_in_use", retry="same_key")
    assert views.calls == []


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("path", "statement"), [("/required", "auth_group"), ("/plain", "idempotency_complete")]
)
@by_sqlstate
def test_case_31_work_that_loses_is_rolled_back_with_a_503_and_the_retry_runs(
    api: Api, path: str, sqlstate: str, statement: str
) -> None:
    with failing(sqlstate, when=statement) as failed:
        answer = api.post(path, {"amount": 1}, "k")

    assert len(failed) == 1
    problem = assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert "nothing happened" in problem["detail"]
    assert (key_of("k").state, views.effects()) == ("failed", 0)
    assert_problem(api.post(path, {"amount": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post(path, {"amount": 1}, "k").status_code == 201
    assert views.effects() == 1


@pytest.mark.postgresql
@BOTH_ADAPTERS
def test_case_31_a_deadlock_in_the_work_is_a_503_and_the_retry_runs(api: Api, path: str) -> None:
    one, two = Group.objects.create(name="one"), Group.objects.create(name="two")
    barrier = threading.Barrier(2, timeout=PATIENCE)

    def rival() -> None:
        with transaction.atomic():
            set_local("deadlock_timeout", "60s")  # it does not notice, so it is not the victim
            lock(two)
            barrier.wait()
            lock(one)

    def work() -> None:
        set_local("deadlock_timeout", "1ms")
        lock(one)
        barrier.wait()
        until(somebody_waits_for_a_lock)
        lock(two)

    views.before_work = work
    with background(rival) as other:
        answer = api.post(path, {}, "k")
        other.result()
    views.before_work = None

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert key_of("k").state == "failed"
    assert api.post(path, {}, "k").status_code == 201


def lock(group: Group) -> None:
    Group.objects.select_for_update().get(pk=group.pk)


def set_local(name: str, value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL {name} = '{value}'")


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock')"
        )
        waiting: bool = cursor.fetchone()[0]
    return waiting


@pytest.mark.postgresql
@pytest.mark.parametrize("bound", ["lock_timeout", "statement_timeout"])
def test_case_31_work_that_waits_too_long_for_a_lock_is_a_503(api: Api, bound: str) -> None:
    group = Group.objects.create(name="locked")
    gate = Gate()

    def hold() -> None:
        with transaction.atomic():
            lock(group)
            gate()

    def work() -> None:
        set_local(bound, "20ms")
        lock(group)

    views.before_work = work
    with background(hold):
        gate.wait_until_reached()
        answer = api.post("/things", {}, "k")
        gate.open()
    views.before_work = None

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert api.post("/things", {}, "k").status_code == 201


@pytest.mark.postgresql
def test_case_31_a_claim_that_waits_too_long_for_a_lock_is_a_503(api: Api) -> None:
    """Somebody holds the row of an abandoned key: the claim has to give up waiting for it."""
    views.behaviour = lambda request: 1 / 0
    api.post("/things", {}, "k")
    views.reset()
    gate = Gate()

    def hold() -> None:
        with transaction.atomic():
            IdempotencyKey.objects.select_for_update().get(key="k")
            gate()

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '20ms'")
    with background(hold):
        gate.wait_until_reached()
        answer = api.post("/things", {}, "k")
        gate.open()

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert views.calls == []
    assert api.post("/things", {}, "k").status_code == 201


@pytest.fixture(params=["repeatable read", "serializable"])
def isolation(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[str]:
    """Every connection of the test at this level, its autocommit statements included."""
    options = connections.settings["default"]["OPTIONS"]
    before = dict(options)
    level = request.param.replace(" ", "\\ ")
    options["options"] = f"{before.get('options', '')} -c default_transaction_isolation={level}"
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == (request.param,)
    yield request.param
    options.clear()
    options.update(before)
    connection.close()


@pytest.mark.postgresql
def test_case_31_identical_requests_at_a_stricter_isolation_execute_once(
    isolation: str, api: Api, each_store: str
) -> None:
    for number in range(3):
        body, key = {"amount": number}, f"k{number}"
        answers = together([lambda body=body, key=key: api.post("/things", body, key)] * 12)
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) <= {201, 409, 503}, statuses
        # Where the first one's own transaction was the victim, the retry is the one that runs.
        assert api.post("/things", body, key).status_code == 201
        assert views.effects() == number + 1


@pytest.mark.postgresql
def test_case_31_a_lost_lease_at_a_stricter_isolation_is_no_500(
    isolation: str, api: Api, each_store: str
) -> None:
    gate = Gate()
    # The snapshot of the work begins before the takeover commits.
    views.before_work = lambda: (Group.objects.count(), gate())[0]

    with background(lambda: api.post("/things", {}, "k")) as paused:
        gate.wait_until_reached()
        views.before_work = None
        end_lease("k")
        taken_over = api.post("/things", {}, "k")
        gate.open()

    assert taken_over.status_code == 201
    loser = paused.result()
    assert loser.status_code in (409, 503)
    assert loser["Content-Type"] == "application/problem+json"
    assert views.effects() == 1
    assert_replay(api.post("/things", {}, "k"), taken_over)


@pytest.fixture
def atomic_requests(transactional_db: None) -> Iterator[None]:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.parametrize("path", ["/required", "/plain", "/set/"])
def test_case_31_under_atomic_requests_the_claim_commits_before_the_work(
    atomic_requests: None, api: Api, path: str, each_store: str
) -> None:
    seen: list[str] = []

    def look() -> None:
        with background(lambda: key_of("k").state) as elsewhere:
            seen.append(elsewhere.result())

    views.before_work = look
    first = api.post(path, {}, "k")
    views.behaviour = lambda request: 1 / 0
    failed = api.post(path, {}, "k2")
    views.reset()

    assert seen[0] == "processing"
    assert first.status_code == 201
    assert failed.status_code == 500
    assert_replay(api.post(path, {}, "k"), first)
    assert (key_of("k2").state, views.effects()) == ("failed", 1)


def test_a_keyed_request_inside_a_transaction_is_refused_as_a_defect(api: Api) -> None:
    with transaction.atomic():
        assert api.post("/things", {}, "k").status_code == 500
    assert views.calls == []
    assert keys() == 0


def test_where_autocommit_is_off_nothing_is_claimed(api: Api) -> None:
    """Else an operation would call the other side with nothing committed."""
    transaction.set_autocommit(False)
    try:
        assert api.post("/buy", {}, "k").status_code == 500
        assert keys() == 0
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert views.calls == []


def test_where_the_settings_turn_autocommit_off_nothing_is_claimed(api: Api) -> None:
    connection.close()
    connection.settings_dict["AUTOCOMMIT"] = False
    try:
        assert api.post("/buy", {}, "k").status_code == 500
        assert connection.connection is None
    finally:
        connection.settings_dict["AUTOCOMMIT"] = True
    assert keys() == 0


# Case 33 and the budget


def work_of(path: str, api: Api) -> int:
    """Statements of the view itself."""
    with statements() as sent:
        api.post(path, {})
    return len(sent)


@pytest.mark.postgresql
def test_the_budget_is_two_statements_for_a_fresh_request_and_one_for_a_duplicate(
    api: Api,
) -> None:
    api.post("/things", {}, "warm")
    own = work_of("/things", api)

    with statements() as fresh:
        first = api.post("/things", {}, "k")
    with statements() as replay:
        assert_replay(api.post("/things", {}, "k"), first)
    with statements() as mismatch:
        assert api.post("/things", {"a": 1}, "k").status_code == 422
    gate = Gate()
    views.before_work = gate
    with background(lambda: api.post("/things", {}, "busy")):
        gate.wait_until_reached()
        with statements() as busy:
            assert api.post("/things", {}, "busy").status_code == 409
        gate.open()

    assert own == 1
    assert (len(fresh) - own, len(replay), len(mismatch), len(busy)) == (2, 1, 1, 1)


def test_the_portable_store_has_a_bounded_budget_too(api: Api, configure: Any) -> None:
    configure(STORE="idempotency.stores.database.DatabaseStore")
    api.post("/things", {}, "warm")
    own = work_of("/things", api)

    with statements() as fresh:
        first = api.post("/things", {}, "k")
    with statements() as replay:
        assert_replay(api.post("/things", {}, "k"), first)
    with statements() as mismatch:
        assert api.post("/things", {"a": 1}, "k").status_code == 422

    # Look, insert, read back; update, keep the answer. A replay reads row and answer.
    assert (len(fresh) - own, len(replay), len(mismatch)) == (5, 2, 1)


@pytest.mark.postgresql
def test_case_33_two_hundred_clients_on_one_key_cost_one_statement_each(api: Api) -> None:
    gate = Gate()
    views.before_work = gate
    counts: list[int] = []
    statuses: list[int] = []

    def loser() -> None:
        with statements() as sent:
            answer = api.post("/things", {"amount": 1}, "k")
        counts.append(len(sent))
        statuses.append(answer.status_code)

    with background(lambda: api.post("/things", {"amount": 1}, "k")) as winner:
        gate.wait_until_reached()
        with nothing_written():
            for _ in range(8):
                together([loser] * 25)
        gate.open()

    assert winner.result().status_code == 201
    assert Counter(statuses) == {409: 200}
    assert max(counts) <= 2
    assert sum(counts) == 200


@pytest.mark.postgresql
def test_case_33_replays_leave_no_dead_rows(api: Api) -> None:
    first = api.post("/things", {"amount": 1}, "k")

    with nothing_written():
        for _ in range(8):
            for answer in together([lambda: api.post("/things", {"amount": 1}, "k")] * 25):
                assert_replay(answer, first)


@pytest.mark.postgresql
def test_case_33_clients_that_lose_the_first_race_send_two_statements_at_most(api: Api) -> None:
    counts: list[tuple[int, int]] = []

    def request() -> None:
        with statements() as sent:
            answer = api.post("/things", {"amount": 1}, "k")
        if answer.status_code == 409 or MARKER in answer:
            counts.append((answer.status_code, len(sent)))

    together([request] * 40)

    assert len(counts) == 39
    assert max(sent for _, sent in counts) <= 2
    assert views.effects() == 1


def row_versions() -> list[Any]:
    """Where the present version of each key is, and who wrote and locked it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid::text, xmin::text, xmax::text FROM idempotency_idempotencykey")
        return list(cursor.fetchall())


def rows_written_so_far() -> tuple[int, ...]:
    """Inserts, updates, deletes and dead rows of the key table, aborted ones among them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT n_tup_ins, n_tup_upd, n_tup_del, n_dead_tup FROM pg_stat_user_tables "
            "WHERE relname = 'idempotency_idempotencykey'"
        )
        counts: tuple[int, ...] = cursor.fetchone()
    return counts


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        number: int = cursor.fetchone()[0]
    return number


@contextmanager
def nothing_written() -> Iterator[None]:
    """Inside the block no version of a key is written, not even one that is rolled back."""
    until(lambda: sessions() <= 2)
    with unvacuumed():
        open_before, versions, written = sessions(), row_versions(), rows_written_so_far()
        yield
        # A session says what it wrote at its end at the latest.
        until(lambda: sessions() == open_before)
        assert row_versions() == versions
        assert rows_written_so_far() == written


@contextmanager
def unvacuumed() -> Iterator[None]:
    """An autovacuum would take dead rows out of the count. Waits for one that is under way."""
    table = "ALTER TABLE idempotency_idempotencykey"
    with connection.cursor() as cursor:
        cursor.execute(f"{table} SET (autovacuum_enabled = off)")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"{table} RESET (autovacuum_enabled)")
