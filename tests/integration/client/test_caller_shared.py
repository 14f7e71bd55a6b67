"""Callers of several processes with one breaker and one budget, in Valkey."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from idempotency.client.backoff import Immediate
from idempotency.client.breaker import BreakerOpen, BreakerPolicy, BreakerRegistry
from idempotency.client.budget import BudgetPolicy
from idempotency.client.caller import AsyncCaller, Caller
from idempotency.client.history import Stop
from idempotency.client.messages import Request
from idempotency.client.policy import CallPolicy
from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget
from idempotency.client.testing import AsyncScriptedTransport, ScriptedTransport

POST = Request("POST", "https://gateway.example/charges", {}, b"{}")


def pieces(link: RedisLink, dependency: str, calls: int, floor: int) -> dict[str, Any]:
    """What one process makes its caller of."""
    policy = BreakerPolicy(minimum_calls=calls)
    return {
        "policy": CallPolicy(backoff=Immediate()),
        "breakers": BreakerRegistry(lambda *names: SharedBreaker(link, *names, policy)),
        "budget": SharedBudget(link, dependency, BudgetPolicy(ratio=0, floor=floor)),
    }


@pytest.fixture
def links(url: str) -> list[RedisLink]:
    """Of two processes."""
    return [RedisLink.connect(url, timeout=30) for _ in range(2)]


def test_what_one_process_learns_stops_the_other(links: list[RedisLink], dependency: str) -> None:
    one, other = (
        Caller(ScriptedTransport(503, 503, 503), dependency, **pieces(link, dependency, 3, 9))
        for link in links
    )
    assert one.call(POST, operation="charge").status_code == 503
    with pytest.raises(BreakerOpen):
        other.call(POST, operation="charge")
    assert other.transport.requests == []  # type: ignore[attr-defined]


def test_two_processes_spend_one_budget(links: list[RedisLink], dependency: str) -> None:
    one, other = (
        Caller(ScriptedTransport(503, 503, 503), dependency, **pieces(link, dependency, 99, 3))
        for link in links
    )
    assert len(one.perform(POST).attempts) == 3
    result = other.perform(POST)
    assert [attempt.budget for attempt in result.attempts] == ["granted", "exhausted"]
    assert result.attempts[-1].stop is Stop.BUDGET


def test_tasks_share_them_too_and_wait_for_valkey_in_a_thread(
    links: list[RedisLink], dependency: str
) -> None:
    async def main() -> list[httpx2.Response | BaseException]:
        transport = AsyncScriptedTransport(*[503] * 9)
        options = pieces(links[0], dependency, 3, 9)
        async with AsyncCaller(transport, dependency, **options) as caller:
            first = await caller.call(POST)
            rest = await asyncio.gather(
                *(caller.call(POST) for _ in range(3)), return_exceptions=True
            )
        return [first, *rest]

    first, *rest = asyncio.run(main())
    assert isinstance(first, httpx2.Response)
    assert [type(end) for end in rest] == [BreakerOpen] * 3
