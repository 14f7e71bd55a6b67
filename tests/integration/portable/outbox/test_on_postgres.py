"""What only PostgreSQL has: many writers at once, and a claim that is one statement."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import Delivered, claims, jobs, marks
from idempotency.outbox.claims import Claimed, Lane
from idempotency.outbox.dispatcher import POLL
from idempotency.outbox.marks import Finished
from idempotency.testing import FrozenClock
from tests.integration.portable.api import PATIENCE, Gate, background, until
from tests.integration.portable.outbox.mail import Mail, dispatch, names, take, take_all, write

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]


# Writers


@pytest.mark.django_db(transaction=True)
def test_of_two_writers_the_first_to_write_is_the_first_to_commit() -> None:
    """Without that, the second could commit and be sent before the first is there to be seen."""
    written, second_began = Gate(), threading.Event()

    def first() -> None:
        with transaction.atomic():
            outbox.send("mail", {"name": "first"}, aggregate="x")
            written()

    def second() -> None:
        with transaction.atomic():
            second_began.set()
            outbox.send("mail", {"name": "second"}, aggregate="x")

    with background(first) as one:
        written.wait_until_reached()
        with background(second) as two:
            assert second_began.wait(PATIENCE)
            until(somebody_waits_for_an_advisory_lock)
            dispatch()
            assert (Mail.names(), two.done()) == ([], False)
            written.open()
            one.result(PATIENCE)
            two.result(PATIENCE)
    dispatch()
    assert Mail.names() == ["first", "second"]


def somebody_waits_for_an_advisory_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        waiting: int = cursor.fetchone()[0]
    return waiting == 1


@pytest.mark.django_db(transaction=True)
def test_writers_of_different_aggregates_or_of_none_do_not_wait_for_each_other() -> None:
    with transaction.atomic():
        outbox.send("mail", {"name": "x"}, aggregate="x")
        outbox.send("mail", {"name": "none"})
        with background(lambda: write("y", about="y")) as other:
            other.result(PATIENCE)
        with background(lambda: write("also none")) as other:
            other.result(PATIENCE)


# The claim


@pytest.mark.django_db(transaction=True)
def test_a_message_that_somebody_has_locked_is_skipped_and_not_waited_for() -> None:
    write("held", "free")
    with transaction.atomic():
        OutboxMessage.objects.select_for_update().get(payload__name="held")
        with background(take) as claimed:
            assert names(claimed.result(timeout=20)) == ["free"]


@pytest.mark.django_db(transaction=True)
def test_a_run_that_finds_only_what_others_have_locked_lets_them_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A holder that only goes on while the run pauses is never waited for by asking at once."""
    held, pauses = Gate(), list[float]()

    def hold() -> None:
        with transaction.atomic():
            OutboxMessage.objects.select_for_update().get(payload__name="a")
            held()

    def sleep(seconds: float) -> None:
        if seconds and not pauses:
            pauses.append(seconds)
            held.open()
            holder.result(PATIENCE)

    write("a")
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with background(hold) as holder:
        held.wait_until_reached()
        done = jobs.dispatch_outbox().done
        held.open()
    assert (done, pauses) == (1, [POLL])


#: In place of the database's clock: stops until a test lets it go on.
STOPPED_CLOCK = """
CREATE SCHEMA stopped;
CREATE FUNCTION stopped.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(42);
    RETURN pg_catalog.clock_timestamp();
END $$
"""


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_looked_before_another_one_committed_takes_nothing() -> None:
    def late() -> list[Claimed]:
        execute("SET search_path = stopped, public, pg_catalog")
        return take()

    write("a")
    execute(STOPPED_CLOCK)
    try:
        execute("SELECT pg_advisory_lock(42)")
        with background(late) as other:
            until(somebody_waits_for_an_advisory_lock)
            assert names(take()) == ["a"]
            execute("SELECT pg_advisory_unlock(42)")
            assert other.result(PATIENCE) == []
    finally:
        execute("DROP SCHEMA stopped CASCADE")


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_looked_before_the_predecessors_end_does_not_put_the_next_one_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late() -> list[Claimed]:
        execute("SET search_path = stopped, public, pg_catalog")
        return take()

    monkeypatch.setattr(claims, "WINDOW", 1)
    write("a", "b", about="one")
    (first,) = take(most=1)
    execute(STOPPED_CLOCK)
    try:
        execute("SELECT pg_advisory_lock(42)")
        with background(late) as other:
            until(somebody_waits_for_an_advisory_lock)
            marks.mark("default", [Finished(first, Delivered(), 0.0)])
            execute("SELECT pg_advisory_unlock(42)")
            assert other.result(PATIENCE) == []
    finally:
        execute("DROP SCHEMA stopped CASCADE")
    assert names(take()) == ["b"]


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_what_follows_a_dead_message_is_looked_at_once_in_ten_minutes(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "WINDOW", 5)
    write(*(f"m{number}" for number in range(6)), about="one")
    OutboxMessage.objects.filter(payload__name="m0").update(state="dead", settled_at=clock.now)
    assert take_all() == []
    due = OutboxMessage.objects.filter(state="pending").values_list("due_at", flat=True).distinct()
    assert list(due) == [clock.now + timedelta(minutes=10)]


def test_a_claim_reads_what_is_unsent_and_not_the_table(clock: FrozenClock) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_outboxmessage (message_id, channel, destination, aggregate, "
            "payload, state, attempt, due_at, created_at, queued_at, settled_at, last_error) "
            "SELECT gen_random_uuid(), 'mail', 'dead', '', '{}', "
            "CASE WHEN n <= 4000 THEN 'delivered' ELSE 'pending' END, 0, %s, now(), now(), "
            "CASE WHEN n <= 4000 THEN now() END, '' FROM generate_series(1, 6000) AS n",
            [clock.now],
        )
        cursor.execute("ANALYZE idempotency_outboxmessage")
    write("healthy", to="healthy")

    rows = rows_read(partial(take, busy={Lane("mail", "dead"): 0}))
    assert rows < 100


def rows_read(call: Any) -> int:
    """Rows of the table that the call fetched, by whatever path."""

    def read() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables "
                "WHERE relname = 'idempotency_outboxmessage'"
            )
            found: int = cursor.fetchone()[0]
        return found

    before = read()
    assert names(call()) == ["healthy"]
    return read() - before
