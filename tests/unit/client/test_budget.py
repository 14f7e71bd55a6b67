"""The retry budget: exact, never overdrawn, and never in the way of what is under way."""

from __future__ import annotations

import random
import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from idempotency.client.budget import BudgetPolicy, RetryBudget, Ticket
from tests.unit.client.clocks import SteeredClock
from tests.unit.client.models import BudgetModel

RATIOS = [0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 1.0, 1.5]


def budget_of(clock: SteeredClock, **policy: float) -> RetryBudget:
    return RetryBudget(BudgetPolicy(**policy), clock=clock)  # type: ignore[arg-type]


def credit(budget: RetryBudget, times: int) -> None:
    for _ in range(times):
        budget.credit()


def spend_all(budget: RetryBudget, *, hedge: bool = False) -> list[Ticket]:
    """Spend until nothing is granted any more; refuse to believe in a bottomless budget."""
    tickets: list[Ticket] = []
    while ticket := budget.spend(hedge=hedge):
        tickets.append(ticket)
        assert len(tickets) < 10_000
    return tickets


# --- Against a brute-force model -----------------------------------------------------------------


class BudgetMachine(RuleBasedStateMachine):
    """Every answer equals that of a model that keeps all events and counts them each time."""

    @initialize(window=st.integers(1, 60), ratio=st.sampled_from(RATIOS), floor=st.integers(0, 3))
    def begin(self, window: int, ratio: float, floor: int) -> None:
        self.clock = SteeredClock(1000.0)
        policy = BudgetPolicy(ratio=ratio, window=window, floor=floor)
        self.budget = RetryBudget(policy, clock=self.clock)
        self.model = BudgetModel(policy, clock=self.clock)
        self.tickets: list[tuple[Ticket, Ticket]] = []

    @rule(times=st.integers(1, 12))
    def credit(self, times: int) -> None:
        for _ in range(times):
            self.budget.credit()
            self.model.credit()

    @rule(hedge=st.booleans())
    def spend(self, hedge: bool) -> None:
        ticket, expected = self.budget.spend(hedge=hedge), self.model.spend(hedge=hedge)
        assert (ticket is None) == (expected is None)
        if ticket and expected:
            self.tickets.append((ticket, expected))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def refund(self, data: st.DataObject) -> None:
        ours, theirs = data.draw(st.sampled_from(self.tickets))
        self.budget.refund(ours)
        self.model.refund(theirs)

    @rule(eighths=st.integers(0, 20))
    def some_time_passes(self, eighths: int) -> None:
        self.clock.advance(eighths / 8)

    @rule(seconds=st.integers(1, 200))
    def nothing_happens_for_long(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.integers(1, 4000))
    def the_clock_steps_back(self, seconds: int) -> None:
        self.clock.advance(-seconds)


BudgetMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestBudgetAgainstItsModel = BudgetMachine.TestCase


@pytest.mark.parametrize("window", range(1, 61))
def test_every_window_from_1_to_60_agrees_with_the_model(window: int) -> None:
    rng, clock = random.Random(window), SteeredClock(1000.0)
    policy = BudgetPolicy(ratio=0.3, window=window, floor=window % 3)
    budget, model = RetryBudget(policy, clock=clock), BudgetModel(policy, clock=clock)
    for _ in range(1500):
        match rng.randrange(5):
            case 0 | 1:
                budget.credit()
                model.credit()
            case 2 | 3:
                hedge = rng.random() < 0.3
                assert bool(budget.spend(hedge=hedge)) == bool(model.spend(hedge=hedge))
            case _:
                clock.advance(rng.choice([0.125, 0.5, 1, window / 2, window, 3 * window, -window]))


# --- Traps ---------------------------------------------------------------------------------------


@given(st.sampled_from(RATIOS), st.integers(0, 2000))
def test_the_ratio_is_exact_and_not_cut_to_a_whole_number(ratio: float, first: int) -> None:
    """Cut to whole numbers, 60 % becomes 100 %."""
    budget = budget_of(SteeredClock(), ratio=ratio, floor=0)
    credit(budget, first)
    assert len(spend_all(budget)) == Fraction(str(ratio)) * first // 1


def test_a_client_with_little_traffic_may_retry_once_a_window(clock: SteeredClock) -> None:
    """Without a floor, 10 % over 60 s is zero retries below ten calls a minute."""
    budget = budget_of(clock)
    for _ in range(5):
        credit(budget, 1)
        assert len(spend_all(budget)) == 1
        clock.advance(60)


def test_the_floor_comes_instead_of_the_ratio_and_not_on_top(clock: SteeredClock) -> None:
    budget = budget_of(clock, floor=3)
    credit(budget, 50)
    assert len(spend_all(budget)) == 5
    clock.advance(60)
    credit(budget, 10)
    assert len(spend_all(budget)) == 3


def test_it_refills_after_an_outage(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 100)
    assert len(spend_all(budget)) == 10
    for _ in range(600):  # the breaker is open: no first attempts, and retries in vain
        clock.advance(1)
        spend_all(budget)
    credit(budget, 100)
    assert len(spend_all(budget)) >= 9


def test_an_empty_budget_says_nothing_about_attempts_under_way(clock: SteeredClock) -> None:
    """It is asked before a retry only; what it has granted stays granted."""
    budget = budget_of(clock)
    credit(budget, 100)
    under_way = spend_all(budget)
    assert budget.spend() is None
    assert not any(ticket.returned for ticket in under_way)
    budget.refund(under_way[0])  # never sent
    assert len(spend_all(budget)) == 1


@pytest.mark.parametrize("offset", [0, 0.1, 0.5, 0.9, 0.999])
def test_sixty_seconds_are_at_least_59_and_at_most_60(clock: SteeredClock, offset: float) -> None:
    """In ten buckets of six seconds they are as few as 54."""
    clock.advance(offset)
    budget = budget_of(clock, floor=0)
    credit(budget, 10)
    clock.advance(59)
    assert len(spend_all(budget)) == 1
    budget = budget_of(clock, floor=0)
    credit(budget, 10)
    clock.advance(60)
    assert spend_all(budget) == []


def test_what_was_spent_is_remembered_as_long_as_what_was_earned(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 100)
    clock.advance(59)
    assert len(spend_all(budget)) == 10
    clock.advance(1)  # the hundred are forgotten, the ten are not
    credit(budget, 100)
    assert spend_all(budget) == []


# --- Hedges and refunds --------------------------------------------------------------------------


def test_hedges_and_retries_share_one_budget(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 100)
    for turn in range(10):
        assert budget.spend(hedge=turn % 2 == 0)
    assert budget.spend(hedge=True) is None
    assert budget.spend(hedge=False) is None


def test_a_hedge_has_no_floor(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 9)
    assert budget.spend(hedge=True) is None
    assert budget.spend(hedge=False)


def test_a_ticket_is_given_back_once(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 20)
    ticket = spend_all(budget)[0]
    budget.refund(ticket)
    budget.refund(ticket)
    assert len(spend_all(budget)) == 1


def test_a_ticket_older_than_the_window_changes_nothing(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 20)
    old = spend_all(budget)[0]
    clock.advance(60)
    credit(budget, 20)
    assert len(spend_all(budget)) == 2
    budget.refund(old)
    assert spend_all(budget) == []


def test_a_clock_that_steps_back_neither_blocks_nor_opens_the_budget(clock: SteeredClock) -> None:
    budget = budget_of(clock)
    credit(budget, 100)
    assert len(spend_all(budget)) == 10
    clock.advance(-3600)
    assert spend_all(budget) == []
    clock.advance(60)  # a minute is a minute, also an hour ago
    credit(budget, 10)
    assert len(spend_all(budget)) == 1


# --- Threads -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("before", [0, 5000])
def test_64_threads_never_overshoot(clock: SteeredClock, before: int) -> None:
    budget = budget_of(clock, floor=0)
    credit(budget, before)
    start, granted = threading.Barrier(64), [0] * 64

    def run(thread: int) -> None:
        start.wait()
        for _ in range(20):
            budget.credit()
            granted[thread] += budget.spend(hedge=thread % 2 == 0) is not None

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) + len(spend_all(budget)) == (before + 64 * 20) // 10


@pytest.mark.parametrize("policy", [{"ratio": -0.1}, {"floor": -1}, {"window": 0}])
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"ratio|seconds"):
        budget_of(SteeredClock(), **policy)
