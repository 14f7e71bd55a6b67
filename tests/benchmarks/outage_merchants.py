"""The merchants of ``tests.benchmarks.outage``: charges at a fixed rate, whatever becomes of them.

Each charge has a key of its own and is tried by one of several merchants, in turn. Nobody waits for
another, and the arrivals do not wait for anybody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from idempotency.client import BreakerOpen, DeadlineExceeded
from idempotency.client.httpx2_transports import AsyncHttpx2Transport
from idempotency.client.safe_client import AsyncSafeClient
from tests.acceptance.product import new_key

#: So many that none is busy enough for its own breaker, which needs 20 calls in 10 seconds.
MERCHANTS = 40
API_KEY = "sk_test_acme"
#: Seconds for one attempt, as those of ``SafeClient`` have.
TIMEOUT = 5.0
#: Of the naive merchants: the first try and three more, at once.
NAIVE_ATTEMPTS = 4

#: Charges once, under a key, and returns whether it was told that the money moved.
Charge = Callable[[str], Awaitable[bool]]
#: Given the product's URL, the charges of as many merchants as there are.
Merchants = Callable[[str], AbstractAsyncContextManager[list[Charge]]]


@dataclass
class Traffic:
    """What was sent and what came of it; times by ``time.monotonic()``."""

    sent: int = 0
    #: When each charge was answered with 201.
    good: list[float] = field(default_factory=list)
    #: Seconds by which the latest arrival was behind its time: a busy machine shows here.
    late: float = 0.0


def body(key: str) -> dict[str, Any]:
    return {"amount": 1000, "currency": "EUR", "source": "tok_visa", "description": key}


@asynccontextmanager
async def with_the_client_half(url: str) -> AsyncIterator[list[Charge]]:
    """Merchants with a ``SafeClient`` each: its budget, breaker, backoff and deadline.

    They are on one machine here, so they share its connections.
    """
    transport = AsyncHttpx2Transport()
    async with AsyncExitStack() as clients:

        async def merchant() -> Charge:
            client = AsyncSafeClient(url, api_key=API_KEY, transport=transport)
            await clients.enter_async_context(client)

            async def charge(key: str) -> bool:
                try:
                    answer = await client.post("/v1/charges", json=body(key), idempotency_key=key)
                except (httpx2.TransportError, BreakerOpen, DeadlineExceeded):
                    return False
                return answer.status_code == 201

            return charge

        yield [await merchant() for _ in range(MERCHANTS)]


@asynccontextmanager
async def naive(url: str) -> AsyncIterator[list[Charge]]:
    """Merchants who try again at once, three times."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False
    ) as client:

        async def charge(key: str) -> bool:
            for _ in range(NAIVE_ATTEMPTS):
                try:
                    answer = await client.post(
                        "/v1/charges", json=body(key), headers={"Idempotency-Key": key}
                    )
                except httpx2.TransportError:
                    continue
                if answer.status_code == 201:
                    return True
            return False

        yield [charge] * MERCHANTS


def send(
    merchants: Merchants, url: str, rate: float, seconds: float, begun: Future[float]
) -> Traffic:
    """Send ``rate`` charges a second for as long; what is unanswered then is given up.

    ``begun`` is told when the clock starts: once the merchants are there.
    """
    return asyncio.run(_send(merchants, url, rate, seconds, begun))


async def _send(
    merchants: Merchants, url: str, rate: float, seconds: float, begun: Future[float]
) -> Traffic:
    traffic = Traffic()

    async def pay(charge: Charge) -> None:
        if await charge(new_key()):
            traffic.good.append(time.monotonic())

    async with merchants(url) as charges:
        began = time.monotonic()
        begun.set_result(began)
        running: set[asyncio.Task[None]] = set()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(due - time.monotonic())
            traffic.late = max(traffic.late, time.monotonic() - due)
            task = asyncio.create_task(pay(charges[number % len(charges)]))
            running.add(task)
            task.add_done_callback(running.discard)
            traffic.sent += 1
        await asyncio.sleep(began + seconds - time.monotonic())
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return traffic
