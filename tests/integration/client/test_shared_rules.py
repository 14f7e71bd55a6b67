"""The scripts decide as the local breaker and budget do: the same model holds for both.

The server's clock is the test's: the scripts are the shipped ones, with the one call that tells the
time replaced.
"""

from __future__ import annotations

import os
import random
import uuid
from unittest import mock

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from idempotency.client import shared
from idempotency.client.breaker import Admission, BreakerOpen, BreakerPolicy, Outcome, State
from idempotency.client.budget import BudgetPolicy, Ticket
from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget
from tests.counts import repeats
from tests.unit.client.models import BreakerModel, BudgetModel, ModelAdmission

TIME = "redis.call('TIME')"
NOW = "test:now"


class ServerClock:
    """Seconds that the scripts take for the server's time."""

    def __init__(self, server: redis.Redis) -> None:
        self._server = server
        self.now = 1_000_000.0
        self.advance(0)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
        whole, micro = divmod(round(self.now * 1e6), 1_000_000)
        self._server.hset(NOW, mapping={"seconds": whole, "micro": micro})


def steered(script: str) -> str:
    assert script.count(TIME) == 1
    return script.replace(TIME, f"redis.call('HMGET', '{NOW}', 'seconds', 'micro')")


class SteeredMachine(RuleBasedStateMachine):
    """Common to both: a server, a clock, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.server = redis.Redis.from_url(os.environ["REDIS_URL"])
        self.link = RedisLink(self.server)
        self.dependency = f"test-{uuid.uuid4()}"
        self.clock = ServerClock(self.server)
        self.patches = [
            mock.patch.object(shared, name, steered(getattr(shared, name)))
            for name in ("_breaker_script", "_budget_script")
        ]
        for patch in self.patches:
            patch.start()

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        assert self.link.connected
        self.server.delete(f"idempotency:client:{self.dependency}", NOW)
        self.server.close()

    @rule(eighths=st.integers(0, 50))
    def some_time_passes(self, eighths: int) -> None:
        self.clock.advance(eighths / 8)

    @rule(seconds=st.integers(5, 200))
    def nothing_happens_for_long(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.integers(1, 4000))
    def the_servers_clock_is_set_back(self, seconds: int) -> None:
        self.clock.advance(-seconds)


class SharedBudgetMachine(SteeredMachine):
    """Two processes share one budget."""

    @initialize(
        window=st.integers(1, 60),
        ratio=st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.5]),
        floor=st.integers(0, 3),
    )
    def begin(self, window: int, ratio: float, floor: int) -> None:
        policy = BudgetPolicy(ratio=ratio, window=window, floor=floor)
        self.budgets = [SharedBudget(self.link, self.dependency, policy) for _ in range(2)]
        self.model = BudgetModel(policy, clock=self.clock)
        self.tickets: list[tuple[Ticket, Ticket]] = []

    @rule(process=st.integers(0, 1), times=st.integers(1, 12))
    def credit(self, process: int, times: int) -> None:
        for _ in range(times):
            self.budgets[process].credit()
            self.model.credit()

    @rule(process=st.integers(0, 1), hedge=st.booleans())
    def spend(self, process: int, hedge: bool) -> None:
        ticket = self.budgets[process].spend(hedge=hedge)
        expected = self.model.spend(hedge=hedge)
        assert (ticket is None) == (expected is None)
        if ticket and expected:
            assert ticket.shared
            self.tickets.append((ticket, expected))

    @precondition(lambda self: self.tickets)
    @rule(process=st.integers(0, 1), data=st.data())
    def refund(self, process: int, data: st.DataObject) -> None:
        ours, theirs = data.draw(st.sampled_from(self.tickets))
        self.budgets[process].refund(ours)
        self.model.refund(theirs)


class SharedBreakerMachine(SteeredMachine):
    """Two processes share one breaker, beside another operation of the same dependency."""

    @initialize(
        policy=st.builds(
            BreakerPolicy,
            window=st.integers(1, 60),
            failure_ratio=st.sampled_from([0.1, 0.3, 0.5, 0.6, 1.0]),
            minimum_calls=st.integers(1, 8),
            slow_call=st.sampled_from([1.0, 5.0, 50.0]),
            slow_ratio=st.sampled_from([0.2, 0.8, 1.0]),
            permits=st.integers(1, 4),
            concurrent_probes=st.integers(1, 3),
            lease=st.sampled_from([0.5, 10.0]),
            open_jitter=st.just(0.0),
        )
    )
    def begin(self, policy: BreakerPolicy) -> None:
        self.model = BreakerModel(policy, self.clock, random.Random(1))
        self.breakers = [
            SharedBreaker(self.link, self.dependency, operation, policy, clock=self.model.time.tell)
            for operation in ("charge", "charge", "report")
        ]
        self.calls: list[tuple[Admission, ModelAdmission]] = []

    def admit_one(self, process: int) -> bool:
        expected = self.model.admit()
        answer: Admission | float | None
        try:
            answer = self.breakers[process].admit()
        except BreakerOpen as refusal:
            answer = refusal.retry_after
        assert self.breakers[process].state is self.model.state
        if not isinstance(answer, Admission):
            assert answer == expected
            return False
        assert answer.shared
        assert isinstance(expected, ModelAdmission)
        self.calls.append((answer, expected))
        return True

    def settle_one(
        self, process: int, which: tuple[Admission, ModelAdmission], outcome: Outcome
    ) -> None:
        known = which[0].settled
        self.breakers[process].settle(which[0], outcome)
        self.model.settle(which[1], outcome)
        assert known or self.breakers[process].state is self.model.state

    @rule(process=st.integers(0, 1), times=st.integers(1, 4))
    def admit(self, process: int, times: int) -> None:
        for _ in range(times):
            self.admit_one(process)

    @rule(process=st.integers(0, 1), outcomes=st.lists(st.sampled_from(Outcome), max_size=8))
    def calls_come_and_go(self, process: int, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if self.admit_one(process):
                self.settle_one(1 - process, self.calls[-1], outcome)

    @precondition(lambda self: self.calls)
    @rule(process=st.integers(0, 1), data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_any_call_that_ever_was(
        self, process: int, data: st.DataObject, outcome: Outcome
    ) -> None:
        self.settle_one(process, data.draw(st.sampled_from(self.calls)), outcome)


few = settings(max_examples=repeats(60, 25), stateful_step_count=40, deadline=None)
SharedBudgetMachine.TestCase.settings = few
SharedBreakerMachine.TestCase.settings = few
TestSharedBudgetAgainstTheModel = SharedBudgetMachine.TestCase
TestSharedBreakerAgainstTheModel = SharedBreakerMachine.TestCase


# --- What only the shared ones have --------------------------------------------------------------


def fail(breaker: SharedBreaker, times: int) -> None:
    for _ in range(times):
        breaker.settle(breaker.admit(), Outcome.FAILURE)


def test_operations_of_one_dependency_share_a_hash_and_nothing_else(
    link: RedisLink, server: redis.Redis, dependency: str
) -> None:
    report = SharedBreaker(link, dependency, "report")
    charge = SharedBreaker(link, dependency, "charge")
    budget = SharedBudget(link, dependency)
    fail(report, 20)
    with pytest.raises(BreakerOpen):
        report.admit()
    assert charge.admit().shared
    budget.credit()
    assert server.keys(f"*{dependency}*") == [f"idempotency:client:{dependency}"]
    assert 7000 < server.ttl(f"idempotency:client:{dependency}") <= 7200


@pytest.mark.parametrize("outcome", Outcome)
def test_a_result_from_before_the_hash_was_lost_is_of_an_older_generation(
    link: RedisLink, server: redis.Redis, dependency: str, outcome: Outcome
) -> None:
    breaker = SharedBreaker(link, dependency, "charge", BreakerPolicy(minimum_calls=1))
    old = breaker.admit()
    server.delete(f"idempotency:client:{dependency}")
    new = breaker.admit()
    assert new.generation > old.generation
    breaker.settle(old, outcome)
    assert breaker.state is State.CLOSED
    breaker.settle(new, Outcome.FAILURE)
    assert breaker.state is State.OPEN


def spend_all(budget: SharedBudget) -> int:
    granted = 0
    while budget.spend():
        granted += 1
    return granted


def test_a_ticket_from_before_the_hash_was_lost_gives_nothing_back(
    link: RedisLink, server: redis.Redis, dependency: str
) -> None:
    budget = SharedBudget(link, dependency)
    old = budget.spend()
    assert old
    server.delete(f"idempotency:client:{dependency}")
    for _ in range(20):
        budget.credit()
    budget.refund(old)
    assert spend_all(budget) == 2


def test_a_ticket_older_than_the_window_does_not_touch_the_second_in_its_bucket(
    link: RedisLink, server: redis.Redis, dependency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_budget_script", steered(shared._budget_script))
    clock = ServerClock(server)
    budget = SharedBudget(link, dependency, BudgetPolicy(window=5))
    old = budget.spend()
    assert old
    clock.advance(5)
    for _ in range(20):
        budget.credit()
    budget.refund(old)
    assert spend_all(budget) == 2


def test_the_open_period_has_the_same_jitter_as_a_local_one(
    link: RedisLink, server: redis.Redis
) -> None:
    waits = []
    for seed in range(40):
        dependency = f"test-{uuid.uuid4()}"
        breaker = SharedBreaker(link, dependency, "charge", rng=random.Random(seed))
        fail(breaker, 20)
        with pytest.raises(BreakerOpen) as caught:
            breaker.admit()
        waits.append(caught.value.retry_after or 0)
        server.delete(f"idempotency:client:{dependency}")
    assert max(waits) <= 6
    assert max(waits) - min(waits) > 1


def test_changes_of_state_are_told_to_the_process_that_caused_them(
    link: RedisLink, dependency: str
) -> None:
    changes: list[tuple[State, State]] = []
    breaker = SharedBreaker(
        link,
        dependency,
        "charge",
        BreakerPolicy(minimum_calls=2),
        on_change=lambda old, new: changes.append((old, new)),
    )
    fail(breaker, 2)
    assert changes == [(State.CLOSED, State.OPEN)]


def test_others_are_told_of_a_change_once_they_find_it_so(
    server: redis.Redis, link: RedisLink, dependency: str
) -> None:
    told: list[tuple[State, State]] = []
    policy = BreakerPolicy(minimum_calls=2)
    breaker = SharedBreaker(link, dependency, "charge", policy)
    other = SharedBreaker(
        link, dependency, "charge", policy, on_change=lambda old, new: told.append((old, new))
    )
    fail(breaker, 2)
    for _ in range(2):
        with pytest.raises(BreakerOpen):
            other.admit()
    assert told == [(State.CLOSED, State.OPEN)]
    # What Redis forgets was not changed by anybody.
    server.delete(f"idempotency:client:{dependency}")
    other.admit()
    assert told[1:] == [(State.OPEN, State.CLOSED)]


def test_a_client_that_decodes_replies_works_too(url: str, dependency: str) -> None:
    client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=30)
    breaker = SharedBreaker(RedisLink(client), dependency, "charge")
    fail(breaker, 20)
    assert breaker.state is State.OPEN
    assert SharedBudget(RedisLink(client), dependency).spend()
    client.close()
