"""The loop over a transport, in a thread and in tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import httpx2
import pytest
import time_machine

from idempotency.client.backoff import Fixed, Immediate
from idempotency.client.breaker import BreakerPolicy, BreakerRegistry, CircuitBreaker, State
from idempotency.client.budget import BudgetPolicy, RetryBudget, Ticket
from idempotency.client.caller import AsyncCaller, Caller
from idempotency.client.classification import Answer, Decision, Trouble, Verdict, classify
from idempotency.client.deadline import Deadline
from idempotency.client.history import Attempt, Stop
from idempotency.client.messages import BodyNotRepeatable, Request, read_body
from idempotency.client.policy import CallPolicy
from idempotency.client.testing import AsyncScriptedTransport, ScriptedTransport, no_waiting
from idempotency.client.transports import Cancellation
from tests.unit.client import virtual_time

POST = Request("POST", "https://gateway.example/charges", {}, b"{}")
EAGER = CallPolicy(backoff=Immediate())


@dataclass
class Watching:
    """An observer that remembers."""

    attempts: list[Attempt] = field(default_factory=list)

    def attempt_ended(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)


def caller_of(*ends: Any, **options: Any) -> tuple[Caller[httpx2.Response], ScriptedTransport]:
    transport = ScriptedTransport(*ends)
    options = {"policy": EAGER, "budget": RetryBudget(BudgetPolicy(floor=100)), **options}
    return Caller(transport, "gateway", **options), transport


def async_caller_of(
    *ends: Any, **options: Any
) -> tuple[AsyncCaller[httpx2.Response], AsyncScriptedTransport]:
    transport = AsyncScriptedTransport(*ends)
    options = {"policy": EAGER, "budget": RetryBudget(BudgetPolicy(floor=100)), **options}
    return AsyncCaller(transport, "gateway", **options), transport


# --- The same in threads and in tasks ------------------------------------------------------------


@pytest.fixture(params=["thread", "tasks"])
def call(request: pytest.FixtureRequest) -> Callable[..., tuple[httpx2.Response, list[Request]]]:
    """Makes a call whose attempts end like this; its answer and what was sent."""

    def in_thread(*ends: Any, **options: Any) -> tuple[httpx2.Response, list[Request]]:
        caller, transport = caller_of(*ends, **options)
        return caller.call(POST), transport.requests

    def in_tasks(*ends: Any, **options: Any) -> tuple[httpx2.Response, list[Request]]:
        caller, transport = async_caller_of(*ends, **options)
        return asyncio.run(caller.call(POST)), transport.requests

    return in_thread if request.param == "thread" else in_tasks


Calling = Callable[..., tuple[httpx2.Response, list[Request]]]


def test_it_survives_a_lost_answer_a_key_in_use_a_rate_limit_and_an_outage(call: Calling) -> None:
    ends = (Trouble.READ, httpx2.Response(409, headers={"Retry-After": "0"}), 429, 503, 201)
    response, requests = call(*ends, policy=CallPolicy(attempts=5, backoff=Immediate(), spread=0))
    assert response.status_code == 201
    assert len({(sent.body, sent.headers["idempotency-key"]) for sent in requests}) == 1


def test_the_last_answer_is_returned_whatever_its_status(call: Calling) -> None:
    assert call(503, 503, 502)[0].status_code == 502


def test_the_last_error_is_the_transports_own(call: Calling) -> None:
    with pytest.raises(httpx2.ReadTimeout) as raised:
        call(503, Trouble.CONNECT, Trouble.TIMEOUT)
    assert [attempt.reason for attempt in raised.value.attempts] == ["503", "connect", "timeout"]  # type: ignore[attr-defined]


def test_an_error_that_nobody_knows_is_raised_and_not_retried(call: Calling) -> None:
    class Surprise(Exception):
        pass

    watching = Watching()
    with pytest.raises(Surprise):
        call(Surprise(), observers=[watching])
    assert [attempt.trouble for attempt in watching.attempts] == [Trouble.UNKNOWN]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_is_not_swallowed_and_not_retried(
    interruption: type[BaseException],
) -> None:
    class Interrupted(ScriptedTransport):
        def send(self, *_: Any) -> httpx2.Response:
            raise interruption

    watching, budget = Watching(), RetryBudget(BudgetPolicy(ratio=0, floor=1))
    caller = Caller(Interrupted(), "gateway", observers=[watching], budget=budget)
    with pytest.raises(interruption):
        caller.call(POST)
    assert [attempt.stop for attempt in watching.attempts] == [Stop.CANCELLED]
    assert caller.gears.breakers.get("gateway", "POST").state is State.CLOSED


def test_an_interruption_in_a_wait_pays_the_retry_back() -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    budget = RetryBudget(BudgetPolicy(ratio=0, floor=1))
    caller, _ = caller_of(503, budget=budget, sleep=interrupted)
    with pytest.raises(KeyboardInterrupt):
        caller.call(POST)
    assert budget.spend() is not None


# --- What is not sent at all ---------------------------------------------------------------------


def generated() -> Any:
    yield b"{}"


@pytest.mark.parametrize("body", [generated(), iter([b"{}"]), [b"{}"], "{}", None])
def test_a_body_that_cannot_be_sent_twice_is_refused_before_the_first_attempt(body: Any) -> None:
    """A generator that is spent would mask the real 503 with an error of its own."""
    with pytest.raises(BodyNotRepeatable):
        Request("POST", "https://gateway.example/charges", {}, body)
    if not isinstance(body, str):
        with pytest.raises(BodyNotRepeatable):
            read_body(body)


def test_a_file_is_read_once_and_stays_where_it_was(tmp_path: Any) -> None:
    """The second attempt would send what is left of it: nothing. And be told 200."""
    path = tmp_path / "body"
    path.write_bytes(b"header,body")
    with path.open("rb") as file:
        file.seek(7)
        assert read_body(file) == b"body"
        assert read_body(file) == b"body"
    with path.open("r") as file, pytest.raises(BodyNotRepeatable, match="binary"):
        read_body(file)


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x"), "x"], ids=type)
def test_bytes_and_text_are_bodies(body: Any) -> None:
    assert read_body(body) == b"x"


# --- One gear for each operation -----------------------------------------------------------------


def test_each_operation_of_each_dependency_has_a_breaker_of_its_own() -> None:
    """One for a whole host would let a report that fails stop the payments."""
    policy = BreakerPolicy(minimum_calls=1)
    registry = BreakerRegistry(lambda *names: CircuitBreaker(policy, name=" ".join(names)))
    options: dict[str, Any] = {"breakers": registry, "policy": CallPolicy(attempts=1)}
    failing = Caller(ScriptedTransport(500, 200), "a.example", **options)
    failing.call(POST, operation="report")
    assert failing.call(POST, operation="charge").status_code == 200
    other = Caller(ScriptedTransport(200), "b.example", **options)
    assert other.call(POST, operation="report").status_code == 200
    assert registry.get("a.example", "report").state is State.OPEN


def test_calls_of_one_operation_share_their_gear_and_its_budget() -> None:
    caller, _ = caller_of()
    assert caller.gears.get("charge") is caller.gears.get("charge")
    assert caller.gears.get("charge").budget is caller.gears.get("refund").budget
    assert caller.gears.get("charge").breaker is not caller.gears.get("refund").breaker


def test_a_lease_that_ends_before_its_attempt_is_refused() -> None:
    """Its probe's success would not count, and the breaker would never close."""
    registry = BreakerRegistry(lambda *names: CircuitBreaker(BreakerPolicy(lease=10)))
    patient = CallPolicy(attempt_timeout=10, deadline=60)
    caller, transport = caller_of(201, breakers=registry, policy=patient)
    with pytest.raises(ValueError, match="lease"):
        caller.call(POST)
    assert transport.requests == []
    assert caller_of(201, policy=patient)[0].call(POST).status_code == 201


def test_a_service_with_statuses_of_its_own_may_classify_by_itself() -> None:
    def by_itself(end: Answer | Trouble, *, method: str, keyed: bool) -> Decision:
        decision = classify(end, method=method, keyed=keyed)
        if isinstance(end, Answer) and end.status == 599:
            return Decision(Verdict.RETRY, "overloaded", decision.health)
        return decision

    caller, transport = caller_of(599, 201, classify=by_itself)
    assert caller.call(POST).status_code == 201
    assert len(transport.requests) == 2


def test_a_deadline_may_be_given_in_seconds_or_as_that_of_the_incoming_request() -> None:
    for deadline in (0.5, Deadline.after(0.5)):
        caller, transport = caller_of(201)
        caller.call(POST, deadline=deadline)
        assert 300 < int(transport.requests[0].headers["x-request-deadline-ms"]) < 500


def test_a_closed_caller_has_closed_its_transport() -> None:
    caller, transport = caller_of()
    with caller:
        assert not transport.closed
    assert transport.closed


# --- Time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_step_of_the_wall_clock_by_an_hour_changes_no_wait(step: timedelta) -> None:
    watching = Watching()
    with time_machine.travel(datetime.now(UTC)) as traveller:

        class Stepping(ScriptedTransport):
            def send(self, *arguments: Any) -> httpx2.Response:
                traveller.move_to(datetime.now(UTC) + step)
                return super().send(*arguments)

        caller = Caller(
            Stepping(503, 503, 201),
            "gateway",
            policy=CallPolicy(backoff=Fixed(0.05), deadline=60),
            budget=RetryBudget(BudgetPolicy(floor=9)),
            observers=[watching],
        )
        assert caller.call(POST).status_code == 201
    assert [attempt.wait for attempt in watching.attempts] == [0.05, 0.05, None]
    assert all(attempt.seconds < 60 for attempt in watching.attempts)


def test_waits_take_their_time() -> None:
    slept: list[float] = []
    caller, _ = caller_of(503, 201, policy=CallPolicy(backoff=Fixed(3.0)), sleep=slept.append)
    caller.call(POST)
    assert slept == [3.0]


def test_in_tests_no_wait_takes_time() -> None:
    policy = CallPolicy(backoff=Fixed(1000.0), deadline=5000.0)
    with no_waiting():
        caller, _ = caller_of(503, 201, policy=policy)
        assert caller.call(POST).status_code == 201
        tasks, _ = async_caller_of(503, 201, policy=policy)
        assert asyncio.run(tasks.call(POST)).status_code == 201


# --- Tasks ---------------------------------------------------------------------------------------


def test_a_task_waits_on_the_loops_own_clock() -> None:
    async def main() -> None:
        caller, _ = async_caller_of(503, 503, 201, policy=CallPolicy(backoff=Fixed(7.0)))
        assert (await caller.call(POST)).status_code == 201
        assert asyncio.get_running_loop().time() == 14

    virtual_time.run(main)


def test_a_task_that_is_cancelled_in_its_wait_pays_the_retry_back() -> None:
    budget = RetryBudget(BudgetPolicy(ratio=0, floor=1))
    caller, _ = async_caller_of(503, 201, policy=CallPolicy(backoff=Fixed(7.0)), budget=budget)

    async def main() -> None:
        task = asyncio.ensure_future(caller.call(POST))
        await asyncio.sleep(1)
        assert budget.spend() is None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(main)
    assert budget.spend() is not None


class Elsewhere(RetryBudget):
    """A budget that may wait for a network, and does so until it is let go."""

    blocks: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(BudgetPolicy(ratio=0, floor=1))
        self.threads: set[int] = set()
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.refunded = threading.Event()

    def spend(self, *, hedge: bool = False) -> Ticket | None:
        self.threads.add(threading.get_ident())
        self.asked.set()
        assert self.may_answer.wait(30)
        return super().spend(hedge=hedge)

    def refund(self, ticket: Ticket) -> None:
        super().refund(ticket)
        self.refunded.set()


def test_what_may_wait_for_a_network_does_so_in_another_thread() -> None:
    budget = Elsewhere()
    budget.may_answer.set()
    caller, _ = async_caller_of(503, 201, budget=budget)
    assert asyncio.run(caller.call(POST)).status_code == 201
    assert threading.get_ident() not in budget.threads


def test_a_task_that_is_cancelled_while_a_thread_asks_for_it_leaves_nothing_spent() -> None:
    budget = Elsewhere()
    caller, transport = async_caller_of(503, 201, budget=budget)

    async def main() -> None:
        task = asyncio.ensure_future(caller.call(POST))
        await asyncio.to_thread(budget.asked.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        budget.may_answer.set()
        await caller.aclose()

    asyncio.run(main())
    assert budget.refunded.is_set()
    assert len(transport.requests) == 1
    assert transport.closed


def test_a_cancellation_object_interrupts_only_what_runs() -> None:
    calls: list[str] = []
    cancellation = Cancellation()
    cancellation.interrupt_with(lambda: calls.append("running"))
    cancellation.interrupt_with(None)
    cancellation.cancel()
    assert (calls, cancellation.cancelled) == ([], True)
    cancellation.interrupt_with(lambda: calls.append("too late"))
    assert calls == ["too late"]
