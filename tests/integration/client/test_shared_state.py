"""What Redis says about breakers and budgets, in words for people."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
import redis

from idempotency.client import shared_state
from idempotency.client.breaker import BreakerPolicy, Outcome, State
from idempotency.client.shared import PREFIX, RedisLink, SharedBreaker, SharedBudget
from idempotency.client.shared_state import Dependency, read_dependencies


@pytest.fixture
def server() -> Iterator[redis.Redis]:
    server = redis.Redis.from_url(os.environ["REDIS_URL"])
    yield server
    for name in server.scan_iter(f"{PREFIX}test:*"):
        server.delete(name)
    server.close()


@pytest.fixture
def name(server: redis.Redis) -> str:
    return f"test:{uuid.uuid4()}"


def standing(server: redis.Redis, name: str) -> Dependency:
    found = read_dependencies(server, seconds=5)
    [dependency] = [one for one in found.found if one.name == name]
    return dependency


def test_each_operation_of_a_dependency_is_shown_with_its_state(
    server: redis.Redis, name: str
) -> None:
    link = RedisLink(server)
    opens_at_once = BreakerPolicy(minimum_calls=1, open_for=30, open_jitter=0)
    failing = SharedBreaker(link, name, "charge: now", opens_at_once)
    fine = SharedBreaker(link, name, "refund")
    failing.settle(failing.admit(), Outcome.FAILURE)
    fine.settle(fine.admit(), Outcome.SUCCESS)

    found = standing(server, name)

    charge, refund = found.breakers
    assert (charge.operation, charge.state) == ("charge: now", State.OPEN)
    assert 25 < charge.opens_for <= 31
    assert (refund.operation, refund.state, refund.opens_for) == ("refund", State.CLOSED, 0)
    assert not found.calm


def test_attempts_are_those_of_the_last_minute(server: redis.Redis, name: str) -> None:
    budget = SharedBudget(RedisLink(server), name)
    for _ in range(3):
        budget.credit()
    assert budget.spend() is not None
    now = int(server.time()[0])  # type: ignore[index]
    server.hset(PREFIX + name, f"budget:{(now - 90) % 60}x", f"{now - 90} 100 100")

    found = standing(server, name)

    assert (found.first_attempts, found.retries) == (3, 1)
    assert found.breakers == ()
    assert found.calm


def test_a_clock_that_was_set_back_keeps_an_open_breaker_open_as_long(
    server: redis.Redis, name: str
) -> None:
    now = int(server.time()[0])  # type: ignore[index]
    hour = 3600 * 10**6
    server.hset(
        PREFIX + name,
        mapping={
            "shift": hour,
            "charge:state": "open",
            "charge:open_until": now * 10**6 + hour + 20 * 10**6,
        },
    )
    [charge] = standing(server, name).breakers
    assert 15 < charge.opens_for <= 20


def test_what_there_is_no_room_for_is_admitted(
    server: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        SharedBudget(RedisLink(server), f"{name}:{number}").credit()
    assert read_dependencies(server, seconds=5).complete
    monkeypatch.setattr(shared_state, "MOST", 2)
    found = read_dependencies(server, seconds=5)
    assert len(found.found) == 2
    assert not found.complete


def test_the_walk_ends_in_time(
    server: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_state, "STEP", 1)
    for number in range(30):
        SharedBudget(RedisLink(server), f"{name}:{number}").credit()
    found = read_dependencies(server, seconds=0)
    assert not found.complete
    assert len(found.found) < 30
