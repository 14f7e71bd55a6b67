"""Second copies over real sockets: what the losers leave behind, and what the server does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import httpx2
import pytest

from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.caller import AsyncCaller, Caller
from idempotency.client.classification import Decision
from idempotency.client.hedging import Hedging
from idempotency.client.httpx2_transports import AsyncHttpx2Transport, Httpx2Transport
from idempotency.client.messages import Request
from idempotency.client.policy import CallPolicy
from idempotency.client.races import THREAD_NAME
from tests.counts import repeats
from tests.integration.client.loopback import PATIENCE, Answer, Seen, Server
from tests.integration.client.quick_server import quick_server
from tests.plugins.fault_proxy import Fault, FaultProxy
from tests.plugins.gateway import GatewayProcess

Start = Callable[..., Server]
StartProxy = Callable[..., FaultProxy]

POLICY = CallPolicy(attempts=1, attempt_timeout=PATIENCE, deadline=2 * PATIENCE)
CONNECTIONS = 5
HEDGES = repeats(10_000, everyday=1_000)


class AtOnce(Hedging):
    """Sends the second copy after a time that no success changes."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self._seconds = seconds

    def delay(self, *, method: str, keyed: bool, server_dedupes: bool) -> float | None:
        return self._seconds

    def learn(self, seconds: float, decision: Decision) -> None:
        """Nothing."""


def hedged(caller: Caller[httpx2.Response] | AsyncCaller[httpx2.Response], delay: float) -> None:
    gears = caller.gears
    gears._gears["POST"] = replace(gears.get("POST"), hedging=AtOnce(delay))


def tasks_caller(delay: float = 0.0) -> AsyncCaller[httpx2.Response]:
    caller = AsyncCaller(
        AsyncHttpx2Transport(connections=CONNECTIONS),
        "gateway",
        policy=POLICY,
        budget=RetryBudget(BudgetPolicy(ratio=10)),
    )
    hedged(caller, delay)
    return caller


def threads_caller(delay: float = 0.0) -> Caller[httpx2.Response]:
    caller = Caller(
        Httpx2Transport(connections=CONNECTIONS),
        "gateway",
        policy=POLICY,
        budget=RetryBudget(BudgetPolicy(ratio=10)),
    )
    hedged(caller, delay)
    return caller


def all_at_once(barrier: threading.Barrier) -> Callable[[Seen], Answer]:
    """Answers when as many requests are there as the pool has connections, and not before."""

    def answer(seen: Seen) -> Answer:
        barrier.wait(PATIENCE)
        return Answer()

    return answer


def test_after_thousands_of_cancelled_hedges_a_pool_of_5_has_5_connections(
    start_server: Start,
) -> None:
    """A client that leaks a slot with each cancelled request stands still after the fifth."""
    proof = start_server(all_at_once(threading.Barrier(CONNECTIONS)))
    plain = Request("GET", proof.url)

    async def main(url: str) -> int:
        caller, hedges = tasks_caller(), 0

        async def calls(number: int) -> None:
            nonlocal hedges
            for _ in range(number):
                result = await caller.perform(Request("POST", url, {}, b"{}"))
                assert result.unwrap().status_code == 201
                hedges += result.attempts[0].hedged

        await asyncio.gather(*(calls(HEDGES // 8) for _ in range(8)))
        send = caller.transport.send
        answers = await asyncio.gather(*(send(plain, PATIENCE) for _ in range(CONNECTIONS)))
        assert [answer.status_code for answer in answers] == [200] * CONNECTIONS
        await caller.aclose()
        return hedges

    with quick_server() as url:
        assert asyncio.run(main(url)) == HEDGES


def test_in_threads_cancelled_hedges_leave_the_pool_whole_too(start_server: Start) -> None:
    proof = start_server(all_at_once(threading.Barrier(CONNECTIONS)))
    caller = threads_caller()
    with quick_server() as url:
        for _ in range(500):
            result = caller.perform(Request("POST", url, {}, b"{}"))
            assert result.unwrap().status_code == 201
    statuses: list[int] = []

    def send() -> None:
        answer = caller.transport.send(Request("GET", proof.url), PATIENCE)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=send) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * CONNECTIONS
    caller.close()


def copies_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["thread", "tasks"])
def test_a_copy_overtakes_a_first_one_that_hangs_and_the_gateway_charges_once(
    gateway: GatewayProcess, start_proxy: StartProxy, kind: str
) -> None:
    proxy = start_proxy(gateway.url)
    proxy.plan(Fault.STALL)
    body = b'{"amount": 1000, "currency": "EUR", "source": "tok_visa"}'
    request = Request("POST", f"{proxy.url}/charges", {"content-type": "application/json"}, body)
    if kind == "thread":
        with threads_caller(delay=1.0) as caller:
            response = caller.call(request, key="k1")
        # The loser was interrupted: it does not sit out its timeout.
        until(lambda: not copies_alive())
    else:

        async def main() -> httpx2.Response:
            async with tasks_caller(delay=1.0) as caller:
                return await caller.call(request, key="k1")

        response = asyncio.run(main())
    assert response.status_code == 201
    assert [charge["id"] for charge in gateway.charges("k1")] == [response.json()["id"]]
    assert len(gateway.ledger()) == 1
    assert proxy.counts == {Fault.STALL: 1, Fault.PASS: 1}
    until(lambda: proxy.connections == 0)


def test_a_copy_that_fails_does_not_take_the_first_one_with_it(
    gateway: GatewayProcess, start_proxy: StartProxy
) -> None:
    gateway.control(delay=2.0)
    proxy = start_proxy(gateway.url)
    proxy.plan(Fault.PASS, Fault.RESET)
    body = b'{"amount": 1000, "currency": "EUR", "source": "tok_visa"}'
    request = Request("POST", f"{proxy.url}/charges", {"content-type": "application/json"}, body)
    with threads_caller(delay=0.5) as caller:
        result = caller.perform(request, key="k1")
    assert result.unwrap().status_code == 201
    assert result.attempts[0].hedged
    assert proxy.counts == {Fault.PASS: 1, Fault.RESET: 1}
