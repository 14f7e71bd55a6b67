"""Breakers in the state that a test begins with."""

from __future__ import annotations

import pytest

from idempotency.client.breaker import (
    Admission,
    BreakerOpen,
    BreakerPolicy,
    CircuitBreaker,
    Outcome,
    State,
)
from tests.unit.client.clocks import SteeredClock

#: Open periods as long as stated.
STEADY = {"open_jitter": 0.0}


def breaker_of(clock: SteeredClock, **policy: float) -> CircuitBreaker:
    return CircuitBreaker(BreakerPolicy(**policy), clock=clock)  # type: ignore[arg-type]


def call(breaker: CircuitBreaker, outcome: Outcome, times: int = 1) -> None:
    for _ in range(times):
        breaker.settle(breaker.admit(), outcome)


def refused(breaker: CircuitBreaker) -> float:
    """How long the refused caller is told to wait."""
    with pytest.raises(BreakerOpen) as caught:
        breaker.admit()
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def opened(clock: SteeredClock, **policy: float) -> CircuitBreaker:
    breaker = breaker_of(clock, **{**STEADY, **policy})
    call(breaker, Outcome.FAILURE, breaker.policy.minimum_calls)
    assert breaker.state is State.OPEN
    return breaker


def half_opened(clock: SteeredClock, **policy: float) -> tuple[CircuitBreaker, Admission]:
    """A breaker with its first probe under way."""
    breaker = opened(clock, **policy)
    clock.advance(breaker.policy.open_for)
    probe = breaker.admit()
    assert breaker.state is State.HALF_OPEN
    return breaker, probe
