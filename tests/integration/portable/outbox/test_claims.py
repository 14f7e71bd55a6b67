"""Who may send a message, and whose turn it is."""

from __future__ import annotations

import itertools
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from idempotency.models import OutboxMessage
from idempotency.outbox import marks
from idempotency.outbox.channels import find
from idempotency.outbox.claims import WINDOW, Batch, Claimed, Lane, claim
from idempotency.outbox.marks import Finished
from idempotency.outbox.messages import Delivered, Retry
from idempotency.testing import FrozenClock
from tests.integration.portable.api import background, together
from tests.integration.portable.outbox.mail import (
    AT_ONCE,
    Mail,
    dispatch,
    history,
    of,
    states,
    write,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_claim")]


def take(most: int = 100, busy: dict[Lane, int] | None = None) -> list[Claimed]:
    batch: Batch = claim("default", [find("mail")], busy or {}, most)
    return batch.claimed


def names(claimed: list[Claimed]) -> list[str]:
    return [one.message.payload["name"] for one in claimed]


def delivered(claimed: Claimed) -> list[Finished]:
    return marks.mark("default", [Finished(claimed, Delivered(), 0.1)])


# Leases and fences


def test_a_claimed_message_is_nobody_elses_until_its_lease_is_over(clock: FrozenClock) -> None:
    write("a")
    (first,) = take()
    assert take() == []
    clock.advance(timedelta(seconds=59.999))
    assert take() == []
    clock.advance(timedelta(seconds=0.001))
    (second,) = take()
    assert (first.lost, second.lost) == (False, True)
    assert (second.message.id, second.message.attempt) == (first.message.id, 2)


def test_a_dispatcher_that_wakes_after_a_takeover_marks_nothing(
    clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    write("a")
    (late,) = take()
    clock.advance(timedelta(seconds=60))
    (owner,) = take()

    assert delivered(late) == []
    assert (of("a").state, of("a").owner) == ("sending", owner.owner)
    assert "outlived its lease" in caplog.text
    assert len(delivered(owner)) == 1
    # And once it is settled, not even the owner's own second mark does anything.
    assert marks.mark("default", [Finished(owner, Retry("late"), 0.1)]) == []
    assert (of("a").state, history("a")) == ("delivered", [("delivered", 2, "")])


def test_a_takeover_says_that_an_attempt_was_lost(clock: FrozenClock) -> None:
    write("a")
    take()
    clock.advance(timedelta(seconds=60))
    dispatch()
    assert history("a") == [("lost", 1, ""), ("delivered", 2, "250 ok")]


@pytest.mark.django_db(transaction=True)
def test_dispatchers_at_once_claim_each_message_once() -> None:
    for number in range(40):
        write(f"m{number}", to=f"d{number % 20}")

    def all_of_them() -> list[str]:
        mine: list[str] = []
        while True:
            batch = claim("default", [find("mail")], {}, 3)
            mine += names(batch.claimed)
            if not (batch.claimed or batch.more):
                return mine

    claimed = itertools.chain(*together([all_of_them] * 4))
    assert sorted(claimed) == sorted(f"m{number}" for number in range(40))


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_message_that_somebody_has_locked_is_skipped_and_not_waited_for(each_claim: str) -> None:
    if each_claim == "orm":
        pytest.skip("the portable claim waits, for a moment")
    write("held", "free")
    with transaction.atomic():
        OutboxMessage.objects.select_for_update().get(payload__name="held")
        with background(take) as claimed:
            assert names(claimed.result(timeout=20)) == ["free"]


# Turns


def test_a_destination_gets_its_share_at_once_and_no_more(clock: FrozenClock) -> None:
    write(*(f"m{number}" for number in range(AT_ONCE + 2)), to="one")
    write("other", to="two")
    assert sorted(names(take())) == ["m0", "m1", "other"]
    busy = {Lane("mail", "one"): 1, Lane("mail", "two"): 0}
    write("late", to="two")
    assert names(take(busy=busy)) == ["m2"]


def test_destinations_take_turns_however_long_the_queue_of_one_is(clock: FrozenClock) -> None:
    write(*(f"first {number}" for number in range(9)), to="long")
    clock.advance(timedelta(seconds=1))
    write("second", to="short")
    assert sorted(names(take(most=2))) == ["first 0", "second"]


def test_the_longest_due_comes_first(clock: FrozenClock) -> None:
    write("retried", "second")
    Mail.answers["retried"] = [Retry("no")]
    Mail.answers["second"] = [Retry("no")]
    dispatch()
    clock.advance(timedelta(seconds=5))
    write("fresh")
    clock.advance(timedelta(seconds=5))
    assert names(take(most=1)) == ["fresh"]


def test_those_that_wait_for_their_predecessor_do_not_hide_the_ones_behind_them(
    clock: FrozenClock,
) -> None:
    write(*(f"m{number}" for number in range(WINDOW + 20)), about="one")
    write("free")
    found = take_until_nothing()
    assert names(found) == ["m0", "free"]

    # Its end makes the next one due at once, whatever was put off meanwhile.
    delivered(found[0])
    assert names(take()) == ["m1"]


def take_until_nothing() -> list[Claimed]:
    found: list[Claimed] = []
    while True:
        batch = claim("default", [find("mail")], {}, 100)
        found += batch.claimed
        if not (batch.claimed or batch.more):
            return found


@pytest.mark.postgresql
def test_what_follows_a_dead_message_is_looked_at_once_in_ten_minutes(
    clock: FrozenClock, each_claim: str
) -> None:
    if each_claim == "orm":
        pytest.skip("the portable claim looks at all of them each time")
    write(*(f"m{number}" for number in range(WINDOW + 1)), about="one")
    OutboxMessage.objects.filter(payload__name="m0").update(state="dead", settled_at=clock.now)
    assert take_until_nothing() == []
    due = OutboxMessage.objects.filter(state="pending").values_list("due_at", flat=True).distinct()
    assert list(due) == [clock.now + timedelta(minutes=10)]


@pytest.mark.postgresql
def test_a_claim_reads_what_is_unsent_and_not_the_table(
    clock: FrozenClock, each_claim: str
) -> None:
    if each_claim == "orm":
        pytest.skip("about the statement for PostgreSQL")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_outboxmessage (message_id, channel, destination, aggregate, "
            "payload, state, attempt, due_at, created_at, queued_at, settled_at, last_error) "
            "SELECT gen_random_uuid(), 'mail', 'dead', '', '{}', "
            "CASE WHEN n <= 20000 THEN 'delivered' ELSE 'pending' END, 0, %s, now(), now(), "
            "CASE WHEN n <= 20000 THEN now() END, '' FROM generate_series(1, 30000) AS n",
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


def test_claims_are_by_the_databases_clock_and_not_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import time_machine

    write("a")
    (held,) = take()
    with time_machine.travel(held.message.created_at + timedelta(hours=1)):
        assert take() == []
    assert states() == {"a": "sending"}
