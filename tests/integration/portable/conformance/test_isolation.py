"""Isolation levels, and what a commit waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from psycopg import IsolationLevel

from idempotency.core.decisions import Busy, Decision, Won
from idempotency.core.errors import LeaseLost
from tests.integration.portable.conformance.harness import (
    ANSWER,
    CLAIMABLE,
    TTL,
    Key,
    elsewhere,
    together,
)

pytestmark = pytest.mark.django_db(transaction=True)

CLAIMANTS = 8


@pytest.fixture(params=["repeatable read", "serializable"])
def isolated(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every new connection, in this thread and in others, runs at the level."""
    level = IsolationLevel[request.param.replace(" ", "_").upper()]
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["isolation_level"] = level
    yield request.param
    connection.close()
    del options["isolation_level"]


@pytest.mark.postgresql
@pytest.mark.parametrize("before", CLAIMABLE)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in_a_transaction"])
def test_case_31_one_claim_wins_at_every_isolation_level(
    key: Key, isolated: str, before: Callable[[Key], None], inside: bool
) -> None:
    before(key)

    def claim() -> Decision | str | None:
        try:
            if not inside:
                return key.claim()
            with transaction.atomic():
                _level_is(isolated)
                return key.claim()
        except OperationalError as error:
            # A lost race ends like this at these levels; the engine runs it again.
            return getattr(error.__cause__, "sqlstate", None)

    outcomes = together(*[claim] * CLAIMANTS)

    assert [type(outcome) for outcome in outcomes].count(Won) == 1
    assert all(isinstance(outcome, (Won, Busy)) or outcome == "40001" for outcome in outcomes)


@pytest.mark.postgresql
def test_case_31_a_fenced_completion_is_refused_at_every_isolation_level(
    key: Key, isolated: str
) -> None:
    lease = key.won(lease=timedelta(0))

    def work() -> None:
        with transaction.atomic():
            _level_is(isolated)
            elsewhere(key.won)
            key.store.complete(lease, ANSWER, TTL)

    with pytest.raises((LeaseLost, OperationalError)) as caught:
        work()
    if isinstance(caught.value, OperationalError):
        assert getattr(caught.value.__cause__, "sqlstate", None) == "40001"
    assert (key.row.attempt, key.responses()) == (2, [])


def _level_is(expected: str) -> None:
    """Also takes the transaction's snapshot, which SHOW would not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation')")
        assert cursor.fetchone() == (expected,)


# Durability


@pytest.mark.postgresql
def test_a_claim_alone_commits_asynchronously_and_one_inside_a_transaction_leaves_it_alone(
    key: Key, durability: Callable[[], list[str]]
) -> None:
    fast = type(key.store).__name__ == "PostgresStore"
    key.won()
    assert durability() == ["off" if fast else "on"]

    with transaction.atomic():
        Key(key.store, "inside").won()
    assert durability()[1:] == ["on"]


@pytest.fixture
def durability() -> Iterator[Callable[[], list[str]]]:
    """What synchronous_commit was at the end of each transaction that inserted a key."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        cursor.execute("CREATE TABLE durability (id serial, setting text)")
        cursor.execute("""
            CREATE FUNCTION note_durability() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO durability (setting) VALUES (current_setting('synchronous_commit'));
                RETURN NULL;
            END $$
        """)
        cursor.execute("""
            CREATE CONSTRAINT TRIGGER note_durability AFTER INSERT ON idempotency_idempotencykey
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_durability()
        """)

    def noted() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT setting FROM durability ORDER BY id")
            return [setting for (setting,) in cursor.fetchall()]

    yield noted
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER note_durability ON idempotency_idempotencykey")
        cursor.execute("DROP FUNCTION note_durability")
        cursor.execute("DROP TABLE durability")
        cursor.execute("RESET synchronous_commit")
