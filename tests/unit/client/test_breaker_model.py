"""The breaker against a brute-force model, and against another library's state machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from unittest import mock

import pybreaker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from idempotency.client.breaker import (
    Admission,
    BreakerOpen,
    BreakerPolicy,
    CircuitBreaker,
    Outcome,
    State,
)
from tests.unit.client.clocks import SteeredClock
from tests.unit.client.models import BreakerModel, ModelAdmission

policies = st.builds(
    BreakerPolicy,
    window=st.integers(1, 60),
    failure_ratio=st.sampled_from([0.1, 0.3, 0.5, 0.6, 1.0]),
    minimum_calls=st.integers(1, 8),
    slow_call=st.sampled_from([1.0, 5.0, 50.0]),
    slow_ratio=st.sampled_from([0.2, 0.8, 1.0]),
    permits=st.integers(1, 4),
    concurrent_probes=st.integers(1, 3),
    lease=st.sampled_from([0.5, 10.0]),
    open_jitter=st.sampled_from([0.0, 0.25]),
)


class Eighths(random.Random):
    """Draws that sums of seconds keep exactly, in whatever order they are added."""

    def random(self) -> float:
        return self.getrandbits(3) / 8


class BreakerMachine(RuleBasedStateMachine):
    """Every answer and every state equals that of a model that keeps all results."""

    @initialize(policy=policies, seed=st.integers())
    def begin(self, policy: BreakerPolicy, seed: int) -> None:
        self.clock = SteeredClock(1000.0)
        self.breaker = CircuitBreaker(policy, clock=self.clock, rng=Eighths(seed))
        self.model = BreakerModel(policy, clock=self.clock, rng=Eighths(seed))
        self.calls: list[tuple[Admission, ModelAdmission]] = []

    def admit_one(self) -> bool:
        expected = self.model.admit()
        answer: Admission | float | None
        try:
            answer = self.breaker.admit()
        except BreakerOpen as refusal:
            answer = refusal.retry_after
        if not isinstance(answer, Admission):
            assert answer == expected
            return False
        assert isinstance(expected, ModelAdmission)
        self.calls.append((answer, expected))
        return True

    def settle_one(self, which: tuple[Admission, ModelAdmission], outcome: Outcome) -> None:
        self.breaker.settle(which[0], outcome)
        self.model.settle(which[1], outcome)
        self.states_agree()

    def states_agree(self) -> None:
        assert self.breaker.state is self.model.state

    @rule(times=st.integers(1, 4))
    def admit(self, times: int) -> None:
        for _ in range(times):
            self.admit_one()
            self.states_agree()

    @rule(outcomes=st.lists(st.sampled_from(Outcome), max_size=8))
    def calls_come_and_go(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if self.admit_one():
                self.settle_one(self.calls[-1], outcome)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_any_call_that_ever_was(self, data: st.DataObject, outcome: Outcome) -> None:
        self.settle_one(data.draw(st.sampled_from(self.calls)), outcome)

    @rule(eighths=st.integers(0, 50))
    def some_time_passes(self, eighths: int) -> None:
        self.clock.advance(eighths / 8)

    @rule(seconds=st.integers(5, 200))
    def nothing_happens_for_long(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.integers(1, 4000))
    def the_clock_steps_back(self, seconds: int) -> None:
        self.clock.advance(-seconds)


BreakerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestBreakerAgainstItsModel = BreakerMachine.TestCase


# --- pybreaker -----------------------------------------------------------------------------------
#
# It counts failures in a row, ours are a share of a window of time. The rules coincide where every
# call must have failed (100 % of at least N), a success is followed by a pause longer than the
# window, no call is slow, calls come one after the other, and the open period is always the same.

PAUSE = 61  # seconds; longer than the window
EVENTS = st.lists(st.one_of(st.sampled_from(["succeeds", "fails"]), st.integers(0, 7)), max_size=60)


class OfTheCall(Exception):
    """The guarded call failed."""


@contextmanager
def time_of_pybreaker(clock: SteeredClock) -> Iterator[None]:
    fake = mock.Mock(now=lambda zone: datetime.fromtimestamp(clock(), UTC))
    with mock.patch.object(pybreaker, "datetime", fake):
        yield


def call_theirs(breaker: pybreaker.CircuitBreaker, event: str) -> bool:
    """Whether the call was let through."""

    def guarded() -> None:
        if event == "fails":
            raise OfTheCall

    try:
        breaker.call(guarded)
    except pybreaker.CircuitBreakerError:
        return False
    except OfTheCall:
        pass
    return True


def call_ours(breaker: CircuitBreaker, event: str) -> bool:
    try:
        admission = breaker.admit()
    except BreakerOpen:
        return False
    breaker.settle(admission, Outcome.FAILURE if event == "fails" else Outcome.SUCCESS)
    return True


@given(events=EVENTS, failures=st.integers(1, 5), permits=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_traces_agree_with_pybreaker_where_the_rules_coincide(
    events: list[str | int], failures: int, permits: int
) -> None:
    clock = SteeredClock(1_000_000)
    policy = BreakerPolicy(
        window=60, failure_ratio=1.0, minimum_calls=failures, permits=permits,
        open_for=5, open_cap=5, open_jitter=0,
    )  # fmt: skip
    ours = CircuitBreaker(policy, clock=clock)
    theirs = pybreaker.CircuitBreaker(
        failures, reset_timeout=5, success_threshold=permits, throw_new_error_on_trip=False
    )
    with time_of_pybreaker(clock):
        for event in events:
            if isinstance(event, int):
                # Time only matters while open; in CLOSED theirs would keep what ours forgets.
                clock.advance(event if ours.state is State.OPEN else 0)
                continue
            closed = ours.state is State.CLOSED
            assert call_ours(ours, event) == call_theirs(theirs, event)
            assert ours.state.value == theirs.current_state.replace("-", "_")
            if closed and event == "succeeds":
                clock.advance(PAUSE)


def test_a_trace_through_every_state_agrees_with_pybreaker() -> None:
    """So that the comparison above is known to reach every state."""
    seen = set()
    clock = SteeredClock(1_000_000)
    policy = BreakerPolicy(failure_ratio=1.0, minimum_calls=3, permits=2, open_cap=5, open_jitter=0)
    ours = CircuitBreaker(policy, clock=clock)
    theirs = pybreaker.CircuitBreaker(
        3, reset_timeout=5, success_threshold=2, throw_new_error_on_trip=False
    )
    with time_of_pybreaker(clock):
        for event in ["fails"] * 4 + ["succeeds", "fails", "fails", "succeeds", "succeeds"]:
            if ours.state is State.OPEN and len(seen) > 1:
                clock.advance(5)
            assert call_ours(ours, event) == call_theirs(theirs, event)
            assert ours.state.value == theirs.current_state.replace("-", "_")
            seen.add(ours.state)
    assert seen == set(State)
    assert ours.state is State.CLOSED


@pytest.mark.parametrize("outcome", Outcome)
def test_the_model_itself_opens_on_failures_only(outcome: Outcome) -> None:
    model = BreakerModel(BreakerPolicy(), SteeredClock(), random.Random(1))
    for _ in range(20):
        admission = model.admit()
        assert isinstance(admission, ModelAdmission)
        model.settle(admission, outcome)
    assert (model.state is State.OPEN) == (outcome is Outcome.FAILURE)
