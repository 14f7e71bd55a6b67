"""Calls over real sockets, a real pool, and a real transaction."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.db import connection, transaction

from idempotency.client import total_time
from idempotency.client.backoff import Fixed, Immediate
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.caller import AsyncCaller, Caller, InsideTransaction
from idempotency.client.classification import Trouble
from idempotency.client.httpx2_transports import AsyncHttpx2Transport, Httpx2Transport
from idempotency.client.messages import Request, read_body
from idempotency.client.policy import CallPolicy
from idempotency.client.testing import ScriptedTransport
from tests.integration.client.loopback import PATIENCE, Answer, Seen, Server
from tests.plugins.fault_proxy import Fault, FaultProxy

Start = Callable[..., Server]
StartProxy = Callable[..., FaultProxy]


class Turns:
    """Answers the n-th request with the n-th answer; the last one stays."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def __call__(self, seen: Seen) -> Answer:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture
def make_caller() -> Iterator[Callable[..., Caller[httpx2.Response]]]:
    """Callers that retry at once and have the budget for it, unless told otherwise."""
    made: list[Caller[httpx2.Response]] = []

    def make(**options: Any) -> Caller[httpx2.Response]:
        pool = {"connections": options.pop("connections", 10)}
        options.setdefault("policy", CallPolicy(backoff=Immediate(), attempt_timeout=PATIENCE))
        options.setdefault("budget", RetryBudget(BudgetPolicy(floor=100)))
        made.append(Caller(Httpx2Transport(**pool), "gateway", **options))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


Make = Callable[..., Caller[httpx2.Response]]


def test_every_attempt_sends_the_same_bytes_with_the_same_key(
    make_caller: Make, start_server: Start, tmp_path: Path
) -> None:
    """Those of a file, too: sent from where the first attempt left it, it would be empty."""
    path = tmp_path / "upload"
    path.write_bytes(b"x" * 100_000)
    server = start_server(Turns(Answer(503), Answer(503), Answer(201)))
    with path.open("rb") as file:
        request = Request("POST", server.url, {}, read_body(file))
    assert make_caller().call(request).status_code == 201
    assert [seen.body == path.read_bytes() for seen in server.seen] == [True] * 3
    headers = [
        {name.lower(): value for name, value in seen.headers.items()} for seen in server.seen
    ]
    assert len({sent["idempotency-key"] for sent in headers}) == 1
    assert {sent["content-length"] for sent in headers} == {"100000"}
    assert [sent["x-retry-attempt"] for sent in headers] == ["1; max=3", "2; max=3", "3; max=3"]


def test_an_answer_does_not_hold_its_connection_during_the_wait(
    make_caller: Make, start_server: Start
) -> None:
    """With a pool of one, nobody else could send anything until the retry."""
    server = start_server(Turns(Answer(503), Answer(200)))
    others: list[int] = []

    def sleep(seconds: float) -> None:
        assert seconds == 5.0
        others.append(caller.transport.send(Request("GET", server.url), PATIENCE).status_code)

    policy = CallPolicy(backoff=Fixed(5.0), attempt_timeout=PATIENCE, deadline=2 * PATIENCE)
    caller = make_caller(connections=1, policy=policy, sleep=sleep)
    assert caller.call(Request("GET", server.url)).status_code == 200
    assert others == [200]
    assert len({seen.port for seen in server.seen}) == 1


@pytest.mark.parametrize("kind", ["thread", "tasks"])
def test_three_attempts_are_three_connections(make_caller: Make, kind: str) -> None:
    """Nothing below retries as well: three of four would be twelve."""
    came = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            nonlocal came
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                came += 1
                peer.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        request = Request("GET", f"http://127.0.0.1:{server.getsockname()[1]}")
        if kind == "thread":
            result = make_caller().perform(request)
        else:
            policy, budget = CallPolicy(backoff=Immediate()), RetryBudget(BudgetPolicy(floor=9))
            tasks = AsyncCaller(AsyncHttpx2Transport(), "gateway", policy=policy, budget=budget)
            result = asyncio.run(tasks.perform(request))
        assert [attempt.trouble for attempt in result.attempts] == [Trouble.READ] * 3
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert came == 3


def test_three_attempts_connect_three_times(
    make_caller: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody listens: that is what HTTP clients retry on their own."""
    tried: list[int] = []
    connect = total_time._Backend.connect_tcp

    def counting(backend: total_time._Backend, host: str, port: int, *rest: Any, **how: Any) -> Any:
        tried.append(port)
        return connect(backend, host, port, *rest, **how)

    monkeypatch.setattr(total_time._Backend, "connect_tcp", counting)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        result = make_caller().perform(Request("GET", f"http://127.0.0.1:{port}"))
    assert [attempt.trouble for attempt in result.attempts] == [Trouble.CONNECT] * 3
    assert tried == [port] * 3


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOSE, Fault.PASS],
        [Fault.RESET, Fault.LOSE, Fault.PASS],
        [Fault.CUT, Fault.PASS],
        [Fault.STALL, Fault.DRIP, Fault.PASS],
    ],
    ids=lambda faults: "-".join(fault.value for fault in faults),
)
def test_a_keyed_post_survives_the_network(
    make_caller: Make, start_server: Start, start_proxy: StartProxy, faults: list[Fault]
) -> None:
    proxy = start_proxy(start_server(lambda seen: Answer(201, b'{"id": "ch_1"}')).url)
    proxy.plan(*faults)
    policy = CallPolicy(backoff=Immediate(), attempt_timeout=1.0)
    response = make_caller(policy=policy).call(Request("POST", proxy.url, {}, b"{}"))
    assert response.json() == {"id": "ch_1"}
    assert proxy.requests == len(faults)


def test_a_post_without_a_key_is_sent_once_when_its_answer_is_lost(
    make_caller: Make, start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server().url)
    proxy.plan(Fault.LOSE)
    caller = make_caller(policy=CallPolicy(make_keys=False, backoff=Immediate()))
    with pytest.raises(httpx2.RemoteProtocolError):
        caller.call(Request("POST", proxy.url, {}, b"{}"))
    assert proxy.requests == 1


def test_a_task_that_is_cancelled_under_way_gives_its_connection_back(
    start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server().url)
    proxy.plan(Fault.STALL)

    async def main() -> None:
        async with AsyncCaller(AsyncHttpx2Transport(connections=1), "gateway") as caller:
            stalled = asyncio.ensure_future(caller.call(Request("GET", proxy.url)))
            while not proxy.requests:
                await asyncio.sleep(0.01)
            stalled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stalled
            assert (await caller.call(Request("GET", proxy.url))).status_code == 200

    asyncio.run(main())


def test_fifty_calls_at_once_take_as_long_as_one(make_caller: Make, start_server: Start) -> None:
    """No lock of ours is held during a call: the server answers when all fifty are there."""
    barrier = threading.Barrier(50)

    def answer(seen: Seen) -> Answer:
        barrier.wait(PATIENCE)
        return Answer()

    url = start_server(answer).url
    caller = make_caller(connections=50)
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: statuses.append(caller.call(Request("GET", url)).status_code)
        )
        for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 50


# --- Transactions --------------------------------------------------------------------------------

POST = Request("POST", "https://gateway.example/charges", {}, b"{}")


@pytest.mark.django_db(transaction=True)
def test_a_call_with_retries_inside_a_transaction_is_refused_before_anything_is_sent() -> None:
    """It would hold the transaction's locks, and a connection, through every wait."""
    transport = ScriptedTransport(201)
    with transaction.atomic(), pytest.raises(InsideTransaction, match="outside"):
        Caller(transport, "gateway").call(POST)
    assert transport.requests == []
    assert Caller(transport, "gateway").call(POST).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_a_call_of_one_attempt_may_be_made_inside_a_transaction() -> None:
    caller = Caller(ScriptedTransport(503), "gateway", policy=CallPolicy(attempts=1))
    with transaction.atomic():
        assert caller.call(POST).status_code == 503


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_does_not_count() -> None:
    assert connection.in_atomic_block
    assert Caller(ScriptedTransport(201), "gateway").call(POST).status_code == 201
    with transaction.atomic(), pytest.raises(InsideTransaction):
        Caller(ScriptedTransport(201), "gateway").call(POST)


# --- Time ----------------------------------------------------------------------------------------


def test_a_call_ends_with_its_deadline_even_at_one_byte_a_second(
    make_caller: Make, start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server().url, drip_seconds=0.2)
    proxy.choose = lambda head: Fault.DRIP
    policy = CallPolicy(attempts=10, backoff=Immediate(), attempt_timeout=0.5)
    began = time.monotonic()
    result = make_caller(policy=policy).perform(Request("GET", proxy.url), deadline=2.0)
    assert time.monotonic() - began < 15
    assert {attempt.trouble for attempt in result.attempts} == {Trouble.TIMEOUT}
    assert len(result.attempts) >= 2
