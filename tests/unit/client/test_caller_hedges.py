"""Two copies in a race: every schedule, in tasks and in threads."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextvars import ContextVar
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.caller import AsyncCaller, Caller
from idempotency.client.classification import Trouble
from idempotency.client.history import CallResult
from idempotency.client.messages import Request
from idempotency.client.policy import CallPolicy
from idempotency.client.races import THREAD_NAME
from idempotency.client.transports import Cancellation
from tests.unit.client import virtual_time
from tests.unit.client.acted import IN_USE, Reply
from tests.unit.client.copies import EAGER, Copy, SteeredCopies, TimedCopies

#: Exact in binary, so that no rounding puts two moments into another order.
TICK = 1 / 1024
POST = Request("POST", "https://gateway.example/charges", {}, b"{}")

ENDS = st.sampled_from(
    [Reply(201), Reply(402), IN_USE, Reply(503), Reply(401), Trouble.READ, Trouble.CONNECT]
)


@dataclass(frozen=True)
class Schedule:
    """Times in ticks. No two moments coincide: each kind has a remainder of its own modulo 4."""

    delay: int
    timeout: int
    first: int
    first_end: Reply | Trouble
    second: int
    second_end: Reply | Trouble

    def expected(self) -> tuple[int, Reply | Trouble, int]:
        """When the attempt ends, how, and how many copies were sent."""
        if self.first < self.delay:
            return self.first, self.first_end, 1
        ends = self._ends()
        for at, end in ends:
            if won(end):
                return at, end, 2
        return *ends[-1], 2

    def _ends(self) -> list[tuple[int, Reply | Trouble]]:
        both = [(self.first, self.first_end), (self.delay + self.second, self.second_end)]
        in_time = [
            (at, end) if at < self.timeout else (self.timeout, Trouble.TIMEOUT) for at, end in both
        ]
        return sorted(in_time, key=lambda timed: timed[0])


def won(end: Reply | Trouble) -> bool:
    """Written down once more: a success, or a final answer."""
    return isinstance(end, Reply) and end.status_code in (201, 202, 402)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    ticks = st.integers(0, 60)
    return Schedule(
        delay=4 * draw(st.integers(1, 30)),
        timeout=4 * draw(st.integers(31, 50)) + 3,
        first=4 * draw(ticks) + 1,
        first_end=draw(ENDS),
        second=4 * draw(ticks) + 2,
        second_end=draw(ENDS),
    )


def caller_of(copies: TimedCopies, schedule: Schedule, attempts: int = 1) -> AsyncCaller[Reply]:
    """Has learnt the schedule's delay."""
    caller = AsyncCaller(
        copies,
        "gateway",
        policy=CallPolicy(attempts=attempts, attempt_timeout=schedule.timeout * TICK),
        budget=RetryBudget(BudgetPolicy(ratio=10)),
        hedging=EAGER,
        clock=lambda: asyncio.get_running_loop().time(),
    )
    hedging = caller.gears.get("POST").hedging
    assert hedging is not None
    hedging.latencies.add(schedule.delay * TICK)
    return caller


def outcome(result: CallResult[Reply]) -> Reply | str:
    return result.response if result.response is not None else str(result.error)


@given(schedules())
@settings(max_examples=500, deadline=None)
@example(Schedule(4, 127, 121, Reply(201), 2, Trouble.CONNECT))
@example(Schedule(4, 127, 121, Reply(201), 2, IN_USE))
@example(Schedule(4, 127, 5, Trouble.READ, 90, Reply(201)))
def test_the_result_is_the_first_success_in_time_else_the_last_failure(schedule: Schedule) -> None:
    """And nothing is alive when it is returned; ``virtual_time.run`` looks for tasks."""
    copies = TimedCopies(
        [(schedule.first * TICK, schedule.first_end), (schedule.second * TICK, schedule.second_end)]
    )

    async def main() -> tuple[float, CallResult[Reply]]:
        result = await caller_of(copies, schedule).perform(POST)
        at = asyncio.get_running_loop().time()
        await virtual_time.settled()
        assert copies.running == 0
        return at, result

    at, result = virtual_time.run(main)
    expected_at, expected_end, sent = schedule.expected()
    assert at == expected_at * TICK
    assert outcome(result) == (
        expected_end.value if isinstance(expected_end, Trouble) else expected_end
    )
    assert len(copies.requests) == sent
    assert len({request.headers["idempotency-key"] for request in copies.requests}) == 1


@given(schedules(), st.integers(0, 240))
@settings(max_examples=300, deadline=None)
def test_both_copies_are_cancelled_when_the_caller_is(schedule: Schedule, ticks: int) -> None:
    """At any moment; none is left running, and the cancellation is not swallowed."""
    copies = TimedCopies(
        [(schedule.first * TICK, schedule.first_end), (schedule.second * TICK, schedule.second_end)]
    )

    async def main() -> None:
        call = asyncio.ensure_future(caller_of(copies, schedule).perform(POST))
        await asyncio.sleep(ticks * TICK)
        is_over = call.done()
        call.cancel()
        await asyncio.wait([call])
        assert asyncio.get_running_loop().time() == ticks * TICK
        assert call.cancelled() is not is_over
        await virtual_time.settled()
        assert copies.running == 0

    virtual_time.run(main)


class Stubborn(TimedCopies):
    """Its copies need another second to die."""

    async def send(self, request: Request, timeout: float) -> Reply:
        try:
            return await super().send(request, timeout)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise


def test_the_winner_does_not_wait_for_the_loser_to_die() -> None:
    schedule = Schedule(4, 127, 121, Reply(201), 2, Reply(202))
    copies = Stubborn([(121 * TICK, Reply(201)), (2 * TICK, Reply(202))])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        caller = caller_of(copies, schedule)
        assert (await caller.call(POST)).status_code == 202
        assert loop.time() == 6 * TICK
        await caller.aclose()  # waits for it
        assert loop.time() == 6 * TICK + 1

    virtual_time.run(main)


def test_a_first_copy_that_lost_is_remembered_as_slow() -> None:
    """Else each hedge would shorten the delay, and the next would come sooner."""
    copies = TimedCopies([(100 * TICK, Reply(201)), (2 * TICK, Reply(201))])
    schedule = Schedule(8, 127, 100, Reply(201), 2, Reply(201))

    async def main() -> None:
        caller = caller_of(copies, schedule)
        await caller.call(POST)
        hedging = caller.gears.get("POST").hedging
        assert hedging is not None
        assert hedging.latencies.quantile() == 10 * TICK

    virtual_time.run(main)


def test_fast_failures_do_not_shorten_the_delay() -> None:
    copies = TimedCopies([(TICK, Reply(503))] * 20)
    schedule = Schedule(8, 127, 1, Reply(503), 1, Reply(503))

    async def main() -> None:
        caller = caller_of(copies, schedule)
        for _ in range(10):
            await caller.call(POST)
        hedging = caller.gears.get("POST").hedging
        assert hedging is not None
        assert hedging.latencies.quantile() == 8 * TICK

    virtual_time.run(main)


def test_an_empty_budget_sends_no_copy_and_leaves_the_first_alone() -> None:
    copies = TimedCopies([(100 * TICK, Reply(201))])
    schedule = Schedule(8, 127, 100, Reply(201), 2, Reply(201))

    async def main() -> None:
        caller = AsyncCaller(
            copies,
            "gateway",
            budget=RetryBudget(BudgetPolicy(ratio=0, floor=100)),
            hedging=EAGER,
            clock=lambda: asyncio.get_running_loop().time(),
        )
        caller.gears.get("POST").hedging.latencies.add(schedule.delay * TICK)  # type: ignore[union-attr]
        assert (await caller.call(POST)).status_code == 201

    virtual_time.run(main)
    assert len(copies.requests) == 1


def test_a_race_that_was_lost_by_both_is_run_again() -> None:
    copies = TimedCopies([(20 * TICK, IN_USE), (2 * TICK, Trouble.READ), (TICK, Reply(201))])
    schedule = Schedule(8, 127, 20, IN_USE, 2, Trouble.READ)

    async def main() -> CallResult[Reply]:
        return await caller_of(copies, schedule, attempts=2).perform(POST)

    result = virtual_time.run(main)
    assert result.unwrap().status_code == 201
    assert [attempt.hedged for attempt in result.attempts] == [True, False]
    assert result.attempts[0].reason == "409 idempotency_key_in_use"
    marks = [request.headers["x-retry-attempt"] for request in copies.requests]
    assert marks == ["1; max=2", "1; max=2", "2; max=2"]


# --- Threads -------------------------------------------------------------------------------------


WHERE: ContextVar[str] = ContextVar("where")


def eager_caller(*copies: Copy, delay: float = 0.001) -> Caller[Reply]:
    """Sends the second copy after a moment."""
    caller = Caller(
        SteeredCopies(copies),
        "gateway",
        policy=CallPolicy(attempts=1, attempt_timeout=60, deadline=120),
        budget=RetryBudget(BudgetPolicy(ratio=10)),
        hedging=EAGER,
    )
    hedging = caller.gears.get("POST").hedging
    assert hedging is not None
    hedging.latencies.add(delay)
    return caller


class Race:
    """A call in a thread, with two copies that are both under way."""

    def __init__(self, first: Copy | None = None, second: Copy | None = None) -> None:
        self.first, self.second = first or Copy(), second or Copy()
        self.caller = eager_caller(self.first, self.second)
        self.result: CallResult[Reply] | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.first.started.wait(30)
        assert self.second.started.wait(30)

    def _run(self) -> None:
        try:
            self.result = self.caller.perform(POST)
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        """Wait for the caller, not for the copies."""
        self._thread.join(30)
        assert not self._thread.is_alive()

    def end(self) -> Reply | str:
        """How it ended. Nothing is alive then."""
        self.join()
        for copy in (self.first, self.second):
            assert copy.over.wait(30)
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join(30)
        assert THREAD_NAME not in [thread.name for thread in threading.enumerate()]
        assert self.result is not None
        return outcome(self.result)


@given(ENDS, ENDS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_in_threads_the_result_is_the_first_success_else_the_last_failure(
    first_end: Reply | Trouble, second_end: Reply | Trouble, first_is_first: bool
) -> None:
    race = Race()
    order = [(race.first, first_end), (race.second, second_end)]
    (early, early_end), (late, late_end) = order if first_is_first else order[::-1]
    early.finish(early_end)
    if won(early_end):
        end = race.end()
        assert late.interrupted.is_set()
        assert end == early_end
    else:
        late.finish(late_end)
        end = race.end()
        assert end == (late_end.value if isinstance(late_end, Trouble) else late_end)
        assert not late.interrupted.is_set()


def test_in_threads_the_winner_does_not_wait_for_the_loser_to_die() -> None:
    race = Race(second=Copy(), first=Copy(interruptible=False))
    race.second.finish(Reply(202))
    race.join()
    assert race.result is not None
    assert race.result.unwrap().status_code == 202
    assert not race.first.over.is_set()
    race.first.finish(Reply(201))
    assert race.end() == Reply(202)


def test_in_threads_both_copies_are_cancelled_when_the_caller_is_interrupted() -> None:
    """By Ctrl-C, for instance."""
    first, second, felt = Copy(), Copy(), threading.Event()
    caller = eager_caller(first, second)

    def interrupt() -> None:
        assert first.started.wait(30)
        assert second.started.wait(30)
        # Again, as a signal just before a wait begins does not end that wait.
        while not felt.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def stop(*_: object) -> None:
        if not felt.is_set():
            felt.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            caller.call(POST)
    finally:
        felt.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    for copy in (first, second):
        assert copy.over.wait(30)
        assert copy.interrupted.is_set()


def test_in_threads_a_copy_that_dies_does_not_leave_the_caller_waiting() -> None:
    race = Race()
    race.first.finish(SystemExit(3))
    race.join()
    assert isinstance(race.error, SystemExit)
    assert race.second.over.wait(30)
    assert race.second.interrupted.is_set()


def test_in_threads_copies_see_the_callers_context() -> None:
    """A request id for the logs, say."""
    seen: list[str] = []

    class Looking(Copy):
        def act(self, cancellation: Cancellation | None) -> Reply:
            seen.append(WHERE.get())
            self.started.set()
            return Reply(201)

    copy = Looking()
    token = WHERE.set("here")
    assert eager_caller(copy).call(POST).status_code == 201
    WHERE.reset(token)
    assert seen == ["here"]
