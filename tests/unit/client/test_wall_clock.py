"""A step of the time of day by an hour changes nothing: no piece looks at it by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from idempotency.client.breaker import CircuitBreaker, Outcome, State
from idempotency.client.budget import RetryBudget
from idempotency.client.deadline import Deadline
from idempotency.client.hedging import Hedging
from tests.unit.client.breakers import call, refused

STEPS = [timedelta(hours=1), timedelta(hours=-1)]


@pytest.fixture(params=STEPS, ids=["an hour ahead", "an hour back"])
def step(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Steps the time of day."""
    with time_machine.travel(datetime.now(UTC)) as traveller:
        yield lambda: traveller.shift(request.param)


def test_a_deadline_is_as_far_away_as_before(step: Callable[[], None]) -> None:
    deadline = Deadline.after(600)
    step()
    assert 590 < deadline.remaining() <= 600
    assert 590 < Deadline.from_header("600000", limit=900).remaining() <= 600


def test_an_open_breaker_opens_no_sooner_and_no_later(step: Callable[[], None]) -> None:
    breaker = CircuitBreaker()
    call(breaker, Outcome.FAILURE, 20)
    step()
    assert 0 < refused(breaker) <= 6


def test_failures_are_not_forgotten(step: Callable[[], None]) -> None:
    breaker = CircuitBreaker()
    call(breaker, Outcome.FAILURE, 19)
    step()
    call(breaker, Outcome.FAILURE)
    assert breaker.state is State.OPEN


def test_an_empty_budget_is_not_refilled(step: Callable[[], None]) -> None:
    budget = RetryBudget()
    assert budget.spend()
    step()
    assert budget.spend() is None


def test_latencies_are_not_forgotten(step: Callable[[], None]) -> None:
    hedging = Hedging()
    for _ in range(100):
        hedging.latencies.add(0.1)
    step()
    assert hedging.delay(method="GET", keyed=False, server_dedupes=False) == 0.1
