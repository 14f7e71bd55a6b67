"""The circuit breaker: when it opens, for how long, and what it is in the midst of threads."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotency.client.breaker import (
    BreakerPolicy,
    BreakerRegistry,
    CircuitBreaker,
    Outcome,
    State,
)
from idempotency.client.classification import Answer, Trouble, classify
from tests.unit.client.breakers import breaker_of, call, opened, refused
from tests.unit.client.clocks import SteeredClock

SUCCESS, FAILURE = Outcome.SUCCESS, Outcome.FAILURE


# --- Opening -------------------------------------------------------------------------------------


def test_it_opens_at_half_of_twenty_calls(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    call(breaker, SUCCESS, 10)
    call(breaker, FAILURE, 9)
    assert breaker.state is State.CLOSED
    call(breaker, FAILURE)
    assert breaker.state is State.OPEN


def test_nineteen_failures_do_not_open_it_and_the_twentieth_call_does(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    call(breaker, FAILURE, 19)
    assert breaker.state is State.CLOSED
    call(breaker, SUCCESS)
    assert breaker.state is State.OPEN


def test_just_under_half_does_not_open_it(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    for _ in range(500):
        call(breaker, SUCCESS)
        call(breaker, FAILURE)
        call(breaker, SUCCESS)
    assert breaker.state is State.CLOSED


def test_slow_successes_open_it_at_80_percent(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    calls = [breaker.admit() for _ in range(16)]
    clock.advance(5)
    for admission in calls:
        breaker.settle(admission, SUCCESS)
    call(breaker, SUCCESS, 3)
    assert breaker.state is State.CLOSED
    call(breaker, SUCCESS)
    assert breaker.state is State.OPEN


@pytest.mark.parametrize("a_second", [10, 1000])
def test_a_total_outage_is_noticed_after_half_the_window(
    clock: SteeredClock, a_second: int
) -> None:
    """Detection takes θ · W, whatever the traffic."""
    breaker = breaker_of(clock)
    for _ in range(20 * a_second):
        call(breaker, SUCCESS)
        clock.advance(1 / a_second)
    began = clock.now
    while breaker.state is State.CLOSED:
        call(breaker, FAILURE)
        clock.advance(1 / a_second)
    assert 4.4 <= clock.now - began <= 5.1


@pytest.mark.parametrize(("n", "expected"), [(10, 1.63e-3), (20, 7.2e-6)])
def test_independent_failures_trip_it_as_often_as_the_binomial_says(
    n: int, expected: float
) -> None:
    """P(trip) = P(Bin(n, p) ≥ θn), p = 0.1, θ = 0.5: each count of failures is tried once."""
    p = 0.1
    tripping = 0.0
    for failures in range(n + 1):
        breaker = breaker_of(SteeredClock(), minimum_calls=n)
        call(breaker, SUCCESS, n - failures)
        call(breaker, FAILURE, failures)
        if breaker.state is State.OPEN:
            tripping += math.comb(n, failures) * p**failures * (1 - p) ** (n - failures)
    assert tripping == pytest.approx(expected, rel=0.01)


def test_old_calls_are_forgotten(clock: SteeredClock) -> None:
    """A window that never expires its buckets adds up failures of hours."""
    breaker = breaker_of(clock)
    for _ in range(100):
        call(breaker, FAILURE, 19)
        clock.advance(10)
    assert breaker.state is State.CLOSED


def test_old_successes_do_not_hold_it_closed(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    call(breaker, SUCCESS, 10_000)
    clock.advance(10)
    call(breaker, FAILURE, 20)
    assert breaker.state is State.OPEN


def test_four_hundreds_and_the_callers_own_cancellation_are_neutral(clock: SteeredClock) -> None:
    """Counting 4xx lets one client that errs cut off all others."""
    breaker = breaker_of(clock)
    ends = [Answer(status) for status in range(400, 500)] + [Trouble.CANCELLED]
    for end in ends:
        call(breaker, classify(end, method="POST", keyed=True).health)
    call(breaker, FAILURE, 19)
    assert breaker.state is State.CLOSED  # and they are not successes either
    call(breaker, FAILURE)
    assert breaker.state is State.OPEN


def test_our_own_timeout_is_a_failure(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    call(breaker, classify(Trouble.TIMEOUT, method="POST", keyed=True).health, 20)
    assert breaker.state is State.OPEN


# --- Open ----------------------------------------------------------------------------------------


def test_while_open_it_refuses_and_says_how_long(clock: SteeredClock) -> None:
    breaker = opened(clock)
    assert refused(breaker) == 5
    clock.advance(3)
    assert refused(breaker) == 2
    clock.advance(2)
    breaker.admit()


def test_each_failed_probe_doubles_the_open_period_up_to_a_minute(clock: SteeredClock) -> None:
    breaker = opened(clock)
    periods = []
    for _ in range(7):
        periods.append(refused(breaker))
        clock.advance(periods[-1])
        call(breaker, FAILURE)
    assert periods == [5, 10, 20, 40, 60, 60, 60]


def test_closing_it_ends_the_doubling(clock: SteeredClock) -> None:
    breaker = opened(clock)
    clock.advance(5)
    call(breaker, FAILURE)
    clock.advance(10)
    call(breaker, SUCCESS, 3)
    call(breaker, FAILURE, 20)
    assert refused(breaker) == 5


@pytest.mark.parametrize("k", [0, 3, 4, 10, 10**6])
def test_open_periods_vary_by_a_fifth_around_their_length(k: int) -> None:
    policy, rng = BreakerPolicy(), random.Random(k)
    nominal = min(60, 5 * 2 ** min(k, 64))
    periods = [policy.period(k, rng.random()) for _ in range(2000)]
    assert all(0.8 * nominal <= period <= 1.2 * nominal for period in periods)
    assert min(periods) < 0.82 * nominal
    assert max(periods) > 1.18 * nominal


# --- Threads and time ----------------------------------------------------------------------------


def test_no_lock_is_held_during_a_call(clock: SteeredClock) -> None:
    """50 calls that can only end together: with a lock held they could not even begin together."""
    breaker = breaker_of(clock)
    together = threading.Barrier(50)

    def run() -> None:
        admission = breaker.admit()
        together.wait(timeout=30)
        breaker.settle(admission, SUCCESS)

    with ThreadPoolExecutor(50) as pool:
        for task in [pool.submit(run) for _ in range(50)]:
            task.result()
    assert breaker.state is State.CLOSED


@pytest.mark.usefixtures("eager_threads")
def test_64_threads_lose_no_result(clock: SteeredClock) -> None:
    breaker = breaker_of(clock, minimum_calls=64 * 20 + 1)
    start = threading.Barrier(64)

    def run() -> None:
        start.wait()
        call(breaker, FAILURE, 20)

    with ThreadPoolExecutor(64) as pool:
        for task in [pool.submit(run) for _ in range(64)]:
            task.result()
    assert breaker.state is State.CLOSED
    call(breaker, FAILURE)
    assert breaker.state is State.OPEN


def test_a_clock_that_steps_back_does_not_keep_it_open(clock: SteeredClock) -> None:
    breaker = opened(clock)
    clock.advance(-3600)
    assert refused(breaker) == 5
    clock.advance(5)
    breaker.admit()


# --- Around it -----------------------------------------------------------------------------------


def test_every_change_of_state_is_reported_and_logged(
    clock: SteeredClock, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[tuple[State, State]] = []
    breaker = CircuitBreaker(
        BreakerPolicy(open_jitter=0),
        name="gateway charge",
        clock=clock,
        on_change=lambda old, new: changes.append((old, new)),
    )
    with caplog.at_level(logging.INFO, "idempotency.client"):
        call(breaker, FAILURE, 20)
        clock.advance(5)
        call(breaker, SUCCESS, 3)
    assert changes == [
        (State.CLOSED, State.OPEN),
        (State.OPEN, State.HALF_OPEN),
        (State.HALF_OPEN, State.CLOSED),
    ]
    assert [record.message for record in caplog.records] == [
        "breaker gateway charge: open, was closed",
        "breaker gateway charge: half_open, was open",
        "breaker gateway charge: closed, was half_open",
    ]


def test_a_listener_may_use_the_breaker_and_may_fail(
    clock: SteeredClock, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(old: State, new: State) -> None:
        assert breaker.state is new
        refused(breaker)
        raise LookupError("a listener's own trouble")

    breaker = CircuitBreaker(clock=clock, on_change=listen)
    call(breaker, FAILURE, 20)
    assert breaker.state is State.OPEN
    assert "a listener's own trouble" in caplog.text


def test_each_operation_of_each_dependency_has_a_breaker_of_its_own(clock: SteeredClock) -> None:
    """With one for every host, one host that fails stops them all."""
    registry = BreakerRegistry(lambda dependency, operation: breaker_of(clock))
    failing = registry.get("gateway", "report")
    call(failing, FAILURE, 20)
    assert registry.get("gateway", "report") is failing
    assert failing.state is State.OPEN
    for other in [("gateway", "charge"), ("bank", "report")]:
        registry.get(*other).admit()


@pytest.mark.usefixtures("eager_threads")
def test_a_registry_makes_one_breaker_for_all_threads(clock: SteeredClock) -> None:
    made: Counter[tuple[str, str]] = Counter()

    def make(dependency: str, operation: str) -> CircuitBreaker:
        made[dependency, operation] += 1
        return breaker_of(clock)

    registry, start = BreakerRegistry(make), threading.Barrier(32)

    def get(thread: int) -> CircuitBreaker:
        start.wait()
        return registry.get("gateway", f"operation {thread % 2}")

    with ThreadPoolExecutor(32) as pool:
        tasks = [pool.submit(get, thread) for thread in range(32)]
        assert len({task.result() for task in tasks}) == 2
    assert set(made.values()) == {1}


@pytest.mark.parametrize(
    "policy",
    [
        {"failure_ratio": 0}, {"failure_ratio": 1.1}, {"slow_ratio": 0}, {"minimum_calls": 0},
        {"permits": 0}, {"concurrent_probes": 0}, {"open_for": 0}, {"open_for": 61},
        {"open_jitter": 1}, {"lease": 0}, {"slow_call": 0}, {"window": 0}, {"open_cap": 3601},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        breaker_of(SteeredClock(), **policy)
