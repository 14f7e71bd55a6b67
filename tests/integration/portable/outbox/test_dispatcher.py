"""The dispatcher with its threads: who waits for whom, and what survives an outage."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection

from idempotency import outbox
from idempotency.client.breaker import BreakerPolicy
from idempotency.models import OutboxMessage
from idempotency.outbox import (
    Dead,
    Delivered,
    Message,
    Retry,
    breakers,
    channels,
    jobs,
    marks,
    operators,
)
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.outbox.messages import Ending
from idempotency.testing import FrozenClock
from tests.integration.portable.api import PATIENCE, Gate, background, until
from tests.integration.portable.outbox.mail import (
    AT_ONCE,
    Mail,
    dispatch,
    history,
    of,
    states,
    write,
)

pytestmark = pytest.mark.django_db


@outbox.channel(
    "fragile", at_once=100, breaker=BreakerPolicy(window=60, minimum_calls=5, permits=1)
)
def fragile(message: Message) -> Ending:
    Mail.arrived.append(message)
    says: dict[str, Ending] = {"dead": Retry("down"), "picky": Dead("no")}
    return says.get(message.destination, Delivered())


@pytest.mark.django_db(transaction=True)
def test_a_destination_that_stalls_takes_its_share_of_threads_and_no_more() -> None:
    stalled, inside = Gate(), threading.Semaphore(0)
    transactions: list[bool] = []

    def meet(message: Message) -> None:
        OutboxMessage.objects.count()  # a channel may use the database, on a connection of its own
        transactions.append(connection.in_atomic_block)
        if message.destination == "stalls":
            inside.release()
            stalled()

    Mail.meet = meet
    write(*(f"slow {number}" for number in range(AT_ONCE + 3)), to="stalls")
    write(*(f"quick {number}" for number in range(5)), to="healthy")

    def run() -> None:
        with closing(Dispatcher(threads=AT_ONCE + 1)) as dispatcher:
            dispatcher.run()

    with background(run) as running:
        for _ in range(AT_ONCE):
            assert inside.acquire(timeout=PATIENCE)
        until(lambda: list(states().values()).count("delivered") == 5)
        assert not inside.acquire(blocking=False)  # the third waits for room
        # What is written while they stall is sent as well.
        write("late", to="healthy")
        until(lambda: states()["late"] == "delivered")
        stalled.open()
        running.result(PATIENCE)
    assert set(states().values()) == {"delivered"}
    assert not any(transactions)


def test_a_sender_that_is_told_to_exit_ends_its_message_and_not_the_dispatcher(
    clock: FrozenClock,
) -> None:
    def leave(message: Message) -> None:
        raise SystemExit("enough")

    Mail.meet = leave
    write("a")
    with closing(Dispatcher(threads=1)) as dispatcher:
        assert dispatcher.run().retried == 1
    assert of("a").last_error == "SystemExit: enough"


def test_told_to_stop_it_claims_nothing_more_and_marks_what_is_under_way(
    clock: FrozenClock,
) -> None:
    write("a", "b")
    with closing(Dispatcher(threads=0)) as dispatcher:
        dispatcher.run(stop=lambda: bool(Mail.arrived))
        assert dispatcher.finish().delivered == 1
    assert states() == {"a": "delivered", "b": "pending"}


def test_what_was_sent_while_the_database_was_away_is_marked_when_it_is_back(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, away = marks.mark, [True]

    def mark(*arguments: Any) -> Any:
        if away:
            raise OperationalError("away")
        return real(*arguments)

    monkeypatch.setattr(marks, "mark", mark)
    write("a")
    with closing(Dispatcher(threads=0)) as dispatcher:
        with pytest.raises(OperationalError):
            dispatcher.run()
        assert states() == {"a": "sending"}
        away.clear()
        assert dispatcher.run().delivered == 1
    assert len(Mail.arrived) == 1


def test_a_lost_race_is_run_again(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Serialization(Exception):
        sqlstate = "40001"

    real, failures = marks.mark, [1, 1]

    def mark(*arguments: Any) -> Any:
        if failures:
            failures.pop()
            raise OperationalError from Serialization()
        return real(*arguments)

    monkeypatch.setattr(marks, "mark", mark)
    write("a")
    assert dispatch().delivered == 1
    assert len(Mail.arrived) == 1


# The breaker of a destination


def test_a_destination_that_fails_is_left_alone_and_its_messages_keep_their_attempts(
    clock: FrozenClock,
) -> None:
    for number in range(10):
        write(f"dead {number}", to="dead", channel="fragile")
        write(f"healthy {number}", to="healthy", channel="fragile")

    tally = dispatch()
    assert (tally.delivered, tally.retried) == (10, 5)
    assert len(Mail.arrived) == 15
    untouched = [of(f"dead {number}") for number in range(5, 10)]
    assert {(row.state, row.attempt) for row in untouched} == {("pending", 0)}
    assert [history(f"dead {number}") for number in range(5, 10)] == [[]] * 5

    # Open, it costs one look a period: whoever comes next puts one message off and leaves.
    with closing(Dispatcher(threads=0)) as dispatcher:
        dispatcher.run()
        assert dispatcher.resting == [("fragile", "dead")]
    assert len(Mail.arrived) == 15


def test_a_refusal_for_good_says_nothing_of_the_destinations_health(clock: FrozenClock) -> None:
    write(*(f"m{number}" for number in range(10)), to="picky", channel="fragile")
    assert dispatch().dead == 10


def test_a_channel_whose_sends_may_take_hours_has_a_breaker_all_the_same(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(channels.find("mail"), lease=timedelta(hours=2))
    monkeypatch.setitem(channels._registry, "mail", slow)
    write("a")
    assert dispatch().delivered == 1


def test_with_redis_all_processes_share_a_destinations_breaker(
    configure: Any, clock: FrozenClock
) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as server:
        server.delete("idempotency:client:outbox:fragile:dead")
    configure(REDIS_URL=os.environ["REDIS_URL"], REDIS_TIMEOUT=30)
    write(*(f"dead {number}" for number in range(6)), to="dead", channel="fragile")
    dispatch()
    assert len(Mail.arrived) == 5
    breakers._breaker.cache_clear()  # as in another process
    clock.advance(timedelta(seconds=1000))
    dispatch()
    assert len(Mail.arrived) == 5


# The scheduled run


def test_a_run_says_what_it_did(clock: FrozenClock) -> None:
    write("a", "b", "c")
    Mail.answers["b"] = [Retry("later")]
    Mail.answers["c"] = [Dead("never")]
    result = jobs.dispatch_outbox()
    assert (result.job, result.done, result.failed, result.more) == ("dispatch_outbox", 1, 1, False)
    assert result.details == ("1 to be tried again",)


@pytest.mark.postgresql
def test_a_message_committed_while_a_run_ends_is_not_left_to_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was nudged for it found the lock taken and left."""
    real, written = jobs.run_job, []

    def run_job(*arguments: Any) -> Any:
        result = real(*arguments)
        if not written:
            written.append(True)
            write("late")
        return result

    monkeypatch.setattr(jobs, "run_job", run_job)
    assert jobs.dispatch_outbox().done == 1
    assert states() == {"late": "delivered"}


@pytest.mark.django_db(transaction=True)
def test_a_run_whose_time_is_up_waits_for_its_slow_sends_while_another_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalled, nudged = Gate(), threading.Event()
    Mail.meet = lambda message: stalled() if message.payload["name"] == "slow" else None
    write("slow", to="stalls")
    monkeypatch.setattr(jobs, "CLAIMING", 0.3)
    monkeypatch.setattr(jobs.nudging, "nudge", lambda using: nudged.set())
    with background(jobs.dispatch_outbox) as first:
        stalled.wait_until_reached()
        assert nudged.wait(PATIENCE)
        nudged.clear()
        write("quick", to="healthy")
        monkeypatch.setattr(jobs, "CLAIMING", 30.0)
        assert jobs.dispatch_outbox().done == 1
        assert states() == {"slow": "sending", "quick": "delivered"}
        stalled.open()
        result = first.result(PATIENCE)
    assert (result.done, result.more) == (1, True)
    assert set(states().values()) == {"delivered"}


def test_a_dispatcher_that_watches_goes_on_after_an_outage_and_stops_when_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures, stop = Dispatcher.run, [1], threading.Event()

    def run(self: Dispatcher, *arguments: Any) -> Any:
        if failures:
            failures.pop()
            raise OperationalError("away")
        return real(self, *arguments)

    monkeypatch.setattr(Dispatcher, "run", run)
    monkeypatch.setattr(jobs, "IDLE", 0.01)
    Mail.meet = lambda message: stop.set()
    write("a")
    jobs.watch(None, stop)
    assert states() == {"a": "delivered"}
    assert "lost its database" in caplog.text


# Pruning


def test_what_was_settled_long_ago_is_deleted_with_its_history_and_nothing_else(
    clock: FrozenClock, configure: Any
) -> None:
    configure(OUTBOX_RETENTION=timedelta(days=7), BATCH_SIZE=2)
    write("old", "dead", "waiting", "discarded", "old too")
    Mail.answers |= {"dead": [Dead("no")], "waiting": [Retry("x", retry_after=9e9)]}
    Mail.answers["discarded"] = [Dead("no")]
    dispatch()
    seen = operators.Seen.of(of("discarded"))
    operators.discard(of("discarded").pk, seen=seen, actor="ops", reason="x")
    clock.advance(timedelta(days=7, seconds=-1))
    write("new")
    assert jobs.prune_outbox().done == 0
    clock.advance(timedelta(seconds=2))

    assert jobs.prune_outbox(dry_run=True).done == 3
    assert len(states()) == 6
    assert jobs.prune_outbox().done == 3
    assert states() == {"dead": "dead", "waiting": "pending", "new": "pending"}
    assert history("dead") == [("dead", 1, "no")]


def test_dead_messages_do_not_hide_what_may_go_behind_them(
    clock: FrozenClock, configure: Any
) -> None:
    """However many batches they fill, a run gets past them."""
    configure(OUTBOX_RETENTION=timedelta(days=7), BATCH_SIZE=1, MAX_BATCHES=2)
    write("dead", "dead too", "dead as well", "old", "old too")
    Mail.answers |= {name: [Dead("no")] for name in ("dead", "dead too", "dead as well")}
    dispatch()
    clock.advance(timedelta(days=7, seconds=1))

    result = jobs.prune_outbox()
    assert (result.done, result.more) == (2, True)
    assert set(states().values()) == {"dead"}
    assert jobs.prune_outbox().more is False
