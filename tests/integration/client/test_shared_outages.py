"""Redis goes away, hangs, comes back, and is wrong: calls go on by the local breaker and budget."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from config import embedded
from idempotency.client.breaker import (
    Admission,
    BreakerOpen,
    BreakerPolicy,
    Outcome,
    State,
)
from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget

PATIENCE = 30.0
POLICY = BreakerPolicy(minimum_calls=3, open_for=600, open_cap=600)


class Side:
    """One process: its own link, breaker and budget."""

    def __init__(self, url: str, *, timeout: float = PATIENCE, pause: float = 0.02) -> None:
        self.link = RedisLink.connect(url, timeout=timeout, pause=pause)
        self.breaker = SharedBreaker(self.link, "gateway", "charge", POLICY)
        self.budget = SharedBudget(self.link, "gateway")

    def fail(self, times: int = 3) -> None:
        for _ in range(times):
            self.breaker.settle(self.breaker.admit(), Outcome.FAILURE)

    def admission(self) -> Admission | None:
        try:
            return self.breaker.admit()
        except BreakerOpen:
            return None

    def decides(self, *, shared: bool) -> None:
        """Wait until admissions are of this kind."""
        until = time.monotonic() + PATIENCE
        while (admission := self.admission()) is None or admission.shared is not shared:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.fixture
def sides(own_valkey: embedded.Valkey) -> list[Side]:
    return [Side(own_valkey.url) for _ in range(2)]


def test_valkey_stops_and_starts_again_and_decisions_are_local_then_shared_again(
    own_valkey: embedded.Valkey, sides: list[Side]
) -> None:
    one, other = sides
    one.decides(shared=True)
    other.decides(shared=True)

    own_valkey.stop()
    one.fail()
    assert one.admission() is None
    local = other.admission()
    assert local is not None  # the two no longer know of each other
    assert not local.shared
    assert not one.link.connected
    assert one.breaker.state is State.OPEN

    own_valkey.start()
    one.decides(shared=True)  # what only one process saw is forgotten
    other.decides(shared=True)
    assert one.breaker.state is State.CLOSED
    one.fail()
    assert other.admission() is None
    assert other.breaker.state is State.OPEN


def test_calls_that_end_on_the_other_side_of_an_outage_are_harmless(
    own_valkey: embedded.Valkey, sides: list[Side]
) -> None:
    one, other = sides
    admitted_before = [one.breaker.admit() for _ in range(3)]
    own_valkey.stop()
    for admission in admitted_before:
        one.breaker.settle(admission, Outcome.FAILURE)
    assert one.admission() is not None  # they were nothing to the local breaker
    admitted_between = [one.breaker.admit() for _ in range(3)]
    assert not any(admission.shared for admission in admitted_between)
    own_valkey.start()
    other.decides(shared=True)
    one.decides(shared=True)
    for admission in admitted_between:
        one.breaker.settle(admission, Outcome.FAILURE)
    assert other.admission() is not None  # and these are nothing to the shared one


def test_the_budget_is_local_then_shared_again(
    own_valkey: embedded.Valkey, sides: list[Side]
) -> None:
    one, other = (side.budget for side in sides)
    shared = one.spend()
    assert shared
    assert other.spend() is None  # one floor for both

    own_valkey.stop()
    one.refund(shared)
    for budget in (one, other):
        ticket = budget.spend()  # a floor for each
        assert ticket
        assert not ticket.shared
        assert budget.spend() is None
        budget.refund(ticket)
        for _ in range(20):
            budget.credit()
        assert [budget.spend() is not None for _ in range(3)] == [True, True, False]

    own_valkey.start()
    for side in sides:
        side.decides(shared=True)
    ticket = other.spend()
    assert ticket
    assert ticket.shared
    assert one.spend() is None
    one.refund(ticket)
    assert one.spend()


def test_a_valkey_that_hangs_costs_no_more_than_its_timeouts(own_valkey: embedded.Valkey) -> None:
    side = Side(own_valkey.url, timeout=0.1, pause=600)
    side.decides(shared=True)
    assert own_valkey.process
    os.kill(own_valkey.process.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            # Without a timeout of its own, the call would outlive this one.
            admission = pool.submit(side.breaker.admit).result(PATIENCE)
        assert not admission.shared
    finally:
        os.kill(own_valkey.process.pid, signal.SIGCONT)


def test_while_redis_is_away_one_call_in_a_while_looks_for_it() -> None:
    """And the others pay no timeout."""
    now = 0.0
    looks = 0

    class Away:
        def register_script(self, script: str) -> Callable[..., object]:
            def run(**_: object) -> object:
                nonlocal looks
                looks += 1
                raise redis.ConnectionError("nobody there")

            return run

    link = RedisLink(Away(), pause=1.0, clock=lambda: now)  # type: ignore[arg-type]
    breaker = SharedBreaker(link, "gateway", "charge")
    for _ in range(100):
        breaker.admit()
    assert looks == 1
    for now in (0.9, 1.0, 1.1, 2.0, 2.5):  # noqa: B007
        for _ in range(100):
            breaker.admit()
    assert looks == 3


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("refused"),
        redis.TimeoutError("too slow"),
        redis.ResponseError("OOM command not allowed"),
        redis.ReadOnlyError("a replica"),
        redis.BusyLoadingError("loading"),
        redis.AuthenticationError("wrong password"),
        OSError("no route"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_trouble_of_redis_reaches_the_caller(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def register_script(self, script: str) -> Callable[..., object]:
            def run(**_: object) -> object:
                raise error

            return run

    link = RedisLink(Broken())  # type: ignore[arg-type]
    breaker, budget = SharedBreaker(link, "gateway", "charge"), SharedBudget(link, "gateway")
    with caplog.at_level(logging.WARNING, "idempotency.client"):
        breaker.settle(breaker.admit(), Outcome.SUCCESS)
        budget.credit()
        ticket = budget.spend()
        assert ticket
        budget.refund(ticket)
    assert [record.message for record in caplog.records] == [
        f"Redis is away, each process decides for itself: {error}"
    ]


def test_a_key_that_holds_something_else_is_left_alone(
    link: RedisLink, server: redis.Redis, dependency: str
) -> None:
    server.set(f"idempotency:client:{dependency}", "somebody else's")
    admission = SharedBreaker(link, dependency, "charge").admit()
    assert not admission.shared
    assert server.get(f"idempotency:client:{dependency}") == "somebody else's"


def test_scripts_that_the_server_forgot_are_sent_again(own_valkey: embedded.Valkey) -> None:
    side = Side(own_valkey.url)
    assert side.breaker.admit().shared
    with redis.Redis.from_url(own_valkey.url) as server:
        server.script_flush()
    assert side.breaker.admit().shared
    assert side.link.connected


def test_nobody_listening_at_all_is_an_outage_from_the_start() -> None:
    side = Side(f"redis://127.0.0.1:{embedded.free_port()}/0")
    admission = side.admission()
    assert admission
    assert not admission.shared
    side.fail()
    assert side.admission() is None
