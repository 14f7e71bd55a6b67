"""Half-open: how many probe, what becomes of a probe that dies, and whose results count."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotency.client.breaker import BreakerOpen, Outcome, State
from tests.unit.client.breakers import STEADY, breaker_of, call, half_opened, opened, refused
from tests.unit.client.clocks import SteeredClock

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


# --- Half-open -----------------------------------------------------------------------------------


def test_three_probes_that_succeed_close_it(clock: SteeredClock) -> None:
    breaker = opened(clock)
    clock.advance(5)
    call(breaker, SUCCESS, 2)
    assert breaker.state is State.HALF_OPEN
    call(breaker, SUCCESS)
    assert breaker.state is State.CLOSED


def test_one_probe_that_fails_opens_it(clock: SteeredClock) -> None:
    breaker = opened(clock)
    clock.advance(5)
    call(breaker, SUCCESS, 2)
    call(breaker, FAILURE)
    assert breaker.state is State.OPEN


def test_a_slow_probe_opens_it(clock: SteeredClock) -> None:
    breaker, probe = half_opened(clock)
    clock.advance(5)
    breaker.settle(probe, SUCCESS)
    assert breaker.state is State.OPEN


def test_a_neutral_probe_gives_its_permit_back(clock: SteeredClock) -> None:
    breaker, probe = half_opened(clock)
    assert refused(breaker) > 0
    breaker.settle(probe, NEUTRAL)
    call(breaker, SUCCESS, 3)
    assert breaker.state is State.CLOSED


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("concurrent", [1, 2, 3, 7])
def test_half_open_lets_no_more_of_50_threads_through_than_its_permits(
    clock: SteeredClock, concurrent: int
) -> None:
    """It admits 50 of 50 where nobody counts."""
    breaker = opened(clock, concurrent_probes=concurrent)
    clock.advance(5)
    start, asked = threading.Barrier(50), threading.Barrier(50)

    def ask() -> bool:
        start.wait()
        try:
            breaker.admit()
        except BreakerOpen:
            return False
        finally:
            asked.wait()
        return True

    with ThreadPoolExecutor(50) as pool:
        admitted = sum(task.result() for task in [pool.submit(ask) for _ in range(50)])
    assert admitted == min(concurrent, 3)


@pytest.mark.usefixtures("eager_threads")
def test_of_50_threads_that_keep_asking_only_one_probes_at_any_moment(clock: SteeredClock) -> None:
    breaker = opened(clock)
    clock.advance(5)
    start, probing, most = threading.Barrier(50), 0, 0
    lock = threading.Lock()

    def run() -> int:
        nonlocal probing, most
        probes = 0
        start.wait()
        for _ in range(20):
            try:
                admission = breaker.admit()
            except BreakerOpen:
                continue
            with lock:
                probing += 1
                most = max(most, probing)
            probes += 1
            with lock:
                probing -= 1
            breaker.settle(admission, NEUTRAL)
        return probes

    with ThreadPoolExecutor(50) as pool:
        probes = sum(task.result() for task in [pool.submit(run) for _ in range(50)])
    assert most == 1
    assert probes > 1


def test_a_probe_whose_process_died_frees_its_permit_after_the_lease(clock: SteeredClock) -> None:
    """Without a lease the breaker is half-open for ever."""
    breaker, _lost = half_opened(clock)
    clock.advance(9.99)
    refused(breaker)
    clock.advance(0.01)
    call(breaker, SUCCESS, 3)
    assert breaker.state is State.CLOSED


def test_a_probe_that_comes_back_after_its_lease_is_ignored(clock: SteeredClock) -> None:
    breaker, late = half_opened(clock, slow_call=100)
    clock.advance(10)
    breaker.settle(late, FAILURE)
    assert breaker.state is State.HALF_OPEN
    successor = breaker.admit()
    breaker.settle(late, FAILURE)
    refused(breaker)  # it did not free its successor's permit
    breaker.settle(successor, SUCCESS)
    assert breaker.state is State.HALF_OPEN


def test_minimum_calls_above_the_permits_do_not_keep_it_half_open(clock: SteeredClock) -> None:
    breaker = opened(clock, minimum_calls=1000, permits=1)
    clock.advance(5)
    call(breaker, SUCCESS)
    assert breaker.state is State.CLOSED


# --- Generations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [SUCCESS, FAILURE])
def test_a_result_from_before_it_opened_changes_nothing(
    clock: SteeredClock, outcome: Outcome
) -> None:
    """A call that was sent before may end while it is open or half-open; it must not close it."""
    breaker = breaker_of(clock, **STEADY)
    old = [breaker.admit() for _ in range(10)]
    call(breaker, FAILURE, 20)
    breaker.settle(old[0], outcome)
    assert breaker.state is State.OPEN
    assert refused(breaker) == 5
    clock.advance(5)
    probe = breaker.admit()
    for admission in old[1:]:
        breaker.settle(admission, outcome)
    assert breaker.state is State.HALF_OPEN
    refused(breaker)
    breaker.settle(probe, SUCCESS)
    call(breaker, SUCCESS, 2)
    assert breaker.state is State.CLOSED


def test_failures_of_an_earlier_generation_do_not_open_it_again(clock: SteeredClock) -> None:
    breaker = breaker_of(clock, **STEADY)
    old = [breaker.admit() for _ in range(20)]
    call(breaker, FAILURE, 20)
    clock.advance(5)
    call(breaker, SUCCESS, 3)
    for admission in old:
        breaker.settle(admission, FAILURE)
    call(breaker, FAILURE, 19)
    assert breaker.state is State.CLOSED


def test_a_call_is_counted_once_however_often_it_is_settled(clock: SteeredClock) -> None:
    breaker = breaker_of(clock)
    admission = breaker.admit()
    for _ in range(50):
        breaker.settle(admission, FAILURE)
    call(breaker, FAILURE, 18)
    assert breaker.state is State.CLOSED
