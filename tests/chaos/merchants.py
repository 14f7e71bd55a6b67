"""The merchants of the chaos run: clients with the client half, which keep a key and come back.

``AsyncSafeClient`` retries within its budget, breaker and deadline. A merchant whose call ends
without an answer that is final comes back later with the key that it kept, as one does who reads
its orders from a database.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2

from idempotency.client import (
    BreakerOpen,
    BreakerPolicy,
    BreakerRegistry,
    CircuitBreaker,
    DeadlineExceeded,
)
from idempotency.client.httpx2_transports import AsyncHttpx2Transport
from idempotency.client.messages import Request
from idempotency.client.policy import CallPolicy
from idempotency.client.safe_client import AsyncSafeClient
from tests.chaos import answers
from tests.chaos.history import History
from tests.chaos.intents import Intent, Plan, Stream

POLICY = CallPolicy(attempts=4, attempt_timeout=4.0, deadline=20.0)
#: Opens and closes like any; an outage here is over within seconds.
BREAKER = BreakerPolicy(open_for=0.5, open_cap=2.0)
NO_ANSWER = (httpx2.TransportError, BreakerOpen, DeadlineExceeded, TimeoutError)
#: Clients that are being served, or wait to come back.
MOST_OPEN = 320
#: How much faster than the mean rate arrivals may be, to make good for an outage.
CATCH_UP = 2.0
#: Charges whose refund may be asked for.
KEPT_CHARGES = 500


@dataclass(frozen=True, slots=True)
class Account:
    """A merchant at the product."""

    id: str
    api_key: str


@dataclass
class Tally:
    """How it goes, for the line of progress."""

    keys: int = 0
    answered: int = 0
    requests: int = 0
    open: set[asyncio.Task[None]] = field(default_factory=set)


class Recorder:
    """A transport that notes each request and its end, and puts the fault on a key's first one."""

    def __init__(self, history: History, tally: Tally) -> None:
        self._http = AsyncHttpx2Transport(connections=400, idle=60, idle_seconds=4.0)
        self._history, self._tally = history, tally
        self.faults: dict[str, str] = {}

    async def send(self, request: Request, timeout: float) -> httpx2.Response:
        key = request.headers["idempotency-key"].strip('"')
        self._tally.requests += 1
        number = self._tally.requests
        fault = self.faults.pop(key, "")
        if fault:
            headers = {**request.headers, "x-demo-fault": fault}
            request = Request(request.method, request.url, headers, request.body)
        path = httpx2.URL(request.url).path
        about = {"fault": fault} if fault else {}
        body = request.body.decode()
        self._history.note("sent", key, number=number, path=path, body=body, **about)
        try:
            response = await self._http.send(request, timeout)
        except asyncio.CancelledError:
            self._history.note("hung_up", key, number=number)
            raise
        except Exception as error:
            cause = error.__cause__ or error
            self._history.note("no_answer", key, number=number, why=type(cause).__name__)
            raise
        self._note_answer(key, number, response)
        return response

    def _note_answer(self, key: str, number: int, response: httpx2.Response) -> None:
        self._history.note(
            "answer",
            key,
            number=number,
            status=response.status_code,
            replayed=answers.replayed(response.headers),
            location=response.headers.get("location", ""),
            body=response.text,
        )

    async def aclose(self) -> None:
        await self._http.aclose()


class Merchants:
    """All of them, in one event loop."""

    def __init__(
        self, url: str, accounts: Sequence[Account], history: History, stream: Stream, rate: float
    ) -> None:
        self._url, self._accounts, self._history = url, accounts, history
        self._stream, self._rate = stream, rate
        self.tally = Tally()
        self._recorder = Recorder(history, self.tally)
        self._clients: list[AsyncSafeClient] = []
        self._charges: list[deque[tuple[str, int]]] = [deque(maxlen=KEPT_CHARGES) for _ in accounts]
        self._leaving = asyncio.Event()

    async def run(self, seconds: float, keys: int, settling: float) -> None:
        """Want ``keys`` payments within ``seconds``; then wait for the answers that are missing."""
        async with AsyncExitStack() as stack:
            for account in self._accounts:
                client = AsyncSafeClient(
                    self._url,
                    api_key=account.api_key,
                    transport=self._recorder,
                    policy=POLICY,
                    breakers=BreakerRegistry(lambda *names: CircuitBreaker(BREAKER)),
                )
                stack.push_async_callback(client.aclose)
                self._clients.append(client)
            await self._arrive(seconds, keys)
            await self._settle(settling)

    async def _arrive(self, seconds: float, keys: int) -> None:
        began = time.monotonic()
        gap = 1 / (self._rate * CATCH_UP)
        while (spent := time.monotonic() - began) < seconds and self.tally.keys < keys:
            due = int(spent * self._rate) + 1
            if self.tally.keys < due and len(self.tally.open) < MOST_OPEN:
                self._begin(self._stream.draw())
            await asyncio.sleep(gap)
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    def _begin(self, intent: Intent) -> None:
        self.tally.keys += 1
        task = asyncio.create_task(self._live(intent))
        self.tally.open.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tally.open.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._history.note("defect", error=repr(task.exception()))

    async def _settle(self, seconds: float) -> None:
        """Until every client that comes back has its answer, or the time is over."""
        if self.tally.open:
            await asyncio.wait(set(self.tally.open), timeout=seconds)
        self._leaving.set()
        left = set(self.tally.open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # One client

    async def _live(self, intent: Intent) -> None:
        call = self._call_of(intent)
        if intent.fault:
            self._recorder.faults[intent.key] = intent.fault
        rng = random.Random(intent.seed)
        about = {"kind": call.kind, "plan": intent.plan.value, "returns": True}
        about["returns"] = intent.plan is not Plan.NEVER
        self._history.note("intent", intent.key, **about)
        if intent.plan in (Plan.HANG_UP, Plan.NEVER):
            await self._hang_up(call, rng)
            if intent.plan is Plan.NEVER:
                return
            await asyncio.sleep(rng.uniform(0, 6))
        copies = rng.choice((2, 2, 3)) if intent.plan is Plan.DOUBLE else 1
        together = (self._insist(call, random.Random(rng.random())) for _ in range(copies))
        answer = (await asyncio.gather(*together))[0]
        self.tally.answered += 1
        self._learn(intent, call, answer)
        await self._return_once_more(intent, call, rng)

    async def _return_once_more(self, intent: Intent, call: Call, rng: random.Random) -> None:
        if intent.plan is Plan.AGAIN:
            await asyncio.sleep(rng.uniform(0.2, 15))
            await self._insist(call, rng)
        if intent.plan is Plan.OTHER:
            self._history.note("other_request", intent.key)
            await self._insist(call.changed(), rng)

    def _call_of(self, intent: Intent) -> Call:
        charges = self._charges[intent.merchant]
        if intent.kind == "refund" and charges:
            charge, amount = charges.popleft()
            if intent.amount % 4:  # the others are refunded once
                charges.append((charge, amount))
            return Call(
                intent, "refund", f"/v1/charges/{charge}/refunds", {"amount": intent.amount}
            )
        kind = "charge" if intent.kind == "charge" else "transfer"
        body = {"amount": intent.amount, "currency": intent.currency, "description": intent.key}
        if kind == "charge":
            body |= {"source": intent.source}
        else:
            body |= {"to": self._accounts[intent.recipient].id}
        return Call(intent, kind, f"/v1/{kind}s", body)

    def _learn(self, intent: Intent, call: Call, answer: httpx2.Response) -> None:
        if call.kind == "charge" and answer.status_code == 201:
            self._charges[intent.merchant].append((answer.json()["id"], intent.amount))

    async def _hang_up(self, call: Call, rng: random.Random) -> None:
        with contextlib.suppress(*NO_ANSWER):
            async with asyncio.timeout(rng.choice((0.005, 0.02, 0.05, 0.2, 1.0)) * rng.random()):
                await self._send(call)

    async def _insist(self, call: Call, rng: random.Random) -> httpx2.Response:
        """Come back until there is an answer that is final."""
        while True:
            with contextlib.suppress(*NO_ANSWER):
                answer = await self._send(call)
                if _settles(answer, call):
                    return answer
            await asyncio.sleep(rng.uniform(0.3, 2.5))

    async def _send(self, call: Call) -> httpx2.Response:
        client = self._clients[call.intent.merchant]
        return await client.post(call.path, json=call.body, idempotency_key=call.intent.key)


@dataclass(frozen=True, slots=True)
class Call:
    """The request of an intent."""

    intent: Intent
    kind: str
    path: str
    body: dict[str, Any]
    #: It is not the first request under its key.
    other: bool = False

    def changed(self) -> Call:
        body = {**self.body, "amount": self.body["amount"] + 1}
        return Call(self.intent, self.kind, self.path, body, other=True)


def _settles(answer: httpx2.Response, call: Call) -> bool:
    code = answers.code_of(answer.status_code, answer.text)
    if call.other:
        return code == answers.REUSED or answers.is_final(answer.status_code, code)
    return answers.is_final(answer.status_code, code)
