"""The attempts of one call and the layers around them: budget, breaker, hedge, and giving up."""

from __future__ import annotations

import pytest

from idempotency.client.attempts import Send, Sleep
from idempotency.client.backoff import Fixed
from idempotency.client.breaker import BreakerOpen, BreakerPolicy, CircuitBreaker, State
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.classification import Trouble
from idempotency.client.hedging import HedgePolicy, Hedging
from idempotency.client.history import Stop
from idempotency.client.policy import CallPolicy
from tests.unit.client.acted import Broken, Play, Reply, Stage
from tests.unit.client.clocks import SteeredClock


@pytest.fixture
def clock() -> SteeredClock:
    return SteeredClock(1000.0)


def budget_of(clock: SteeredClock, **policy: float) -> RetryBudget:
    return RetryBudget(BudgetPolicy(**policy), clock=clock)  # type: ignore[arg-type]


def left_in(budget: RetryBudget) -> int:
    """How many retries it grants now. They are given back."""
    tickets = []
    while (ticket := budget.spend()) is not None:
        tickets.append(ticket)
    for ticket in tickets:
        budget.refund(ticket)
    return len(tickets)


def opened(clock: SteeredClock, calls: int = 1) -> CircuitBreaker:
    """A breaker that opens at the given number of failures."""
    policy = BreakerPolicy(minimum_calls=calls, open_for=5, open_jitter=0)
    return CircuitBreaker(policy, clock=clock)


# --- Budget --------------------------------------------------------------------------------------


def test_an_empty_budget_ends_the_call_with_the_last_result(clock: SteeredClock) -> None:
    stage = Stage(clock, {"budget": budget_of(clock, ratio=0, floor=1)})
    play = stage.play(503, Reply(503, {}, b"second"))
    assert play.result is not None
    assert play.result.unwrap().content == b"second"
    assert [attempt.budget for attempt in stage.attempts] == ["granted", "exhausted"]
    assert stage.attempts[-1].stop is Stop.BUDGET


def test_in_an_outage_the_requests_are_1_1_times_the_calls(clock: SteeredClock) -> None:
    stage = Stage(clock, {"budget": budget_of(clock, ratio=0.1, floor=0), "breaker": None})
    sent = 0
    for _ in range(1000):
        play, loop = Play(clock), stage.open()
        step = loop.begin()
        while isinstance(step, Send | Sleep):
            sent += isinstance(step, Send)
            failed = loop.failed(Trouble.READ, Broken())
            step = loop.ended(failed) if isinstance(step, Send) else loop.slept()
        assert play.slept == []
    assert sent == 1100


def test_only_first_attempts_credit_the_budget(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=1, floor=0)
    stage = Stage(clock, {"budget": budget, "policy": CallPolicy(attempts=2)})
    stage.play(503, 503)
    assert left_in(budget) == 0


def test_calls_that_the_breaker_rejects_do_not_credit_the_budget(clock: SteeredClock) -> None:
    budget, breaker = budget_of(clock, ratio=1, floor=0), opened(clock)
    stage = Stage(clock, {"budget": budget, "breaker": breaker, "policy": CallPolicy(attempts=1)})
    stage.play(500)
    assert left_in(budget) == 1
    for _ in range(10):
        stage.play()
    assert left_in(budget) == 1


def test_a_retry_that_the_breaker_rejects_is_paid_back(clock: SteeredClock) -> None:
    budget, breaker = budget_of(clock, ratio=0, floor=3), opened(clock)
    stage = Stage(clock, {"budget": budget, "breaker": breaker})
    stage.play(500)
    assert [attempt.budget for attempt in stage.attempts] == ["granted", "not asked"]
    assert left_in(budget) == 3


def test_a_retry_that_found_no_connection_in_the_pool_is_paid_back(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=0, floor=3)
    stage = Stage(clock, {"budget": budget})
    stage.play(503, Trouble.POOL, 201)
    assert left_in(budget) == 2


def test_a_retry_whose_connection_was_refused_stays_paid(clock: SteeredClock) -> None:
    """It came to the server's door. Paid back, an outage would be met without any budget."""
    budget = budget_of(clock, ratio=0, floor=3)
    stage = Stage(clock, {"budget": budget})
    stage.play(Trouble.CONNECT, Trouble.CONNECT, Trouble.CONNECT)
    assert left_in(budget) == 1


def test_a_retry_that_is_given_up_in_its_wait_is_paid_back(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=0, floor=3)
    loop = Stage(clock, {"budget": budget}).open()
    loop.begin()
    assert isinstance(loop.ended(loop.answered(Reply(503))), Sleep)
    assert left_in(budget) == 2
    loop.cancel()
    loop.cancel()
    assert left_in(budget) == 3


def test_a_retry_that_woke_up_too_late_is_paid_back(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=0, floor=3)
    stage = Stage(clock, {"budget": budget, "policy": CallPolicy(backoff=Fixed(1.0), deadline=5)})
    loop = stage.open()
    loop.begin()
    loop.ended(loop.answered(Reply(503)))
    clock.advance(6)
    assert not isinstance(loop.slept(), Send)
    assert left_in(budget) == 3


def test_a_retry_that_is_taken_back_under_way_stays_paid(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=0, floor=3)
    loop = Stage(clock, {"budget": budget}).open()
    loop.begin()
    loop.ended(loop.answered(Reply(503)))
    loop.slept()
    loop.cancel()
    assert left_in(budget) == 2


def test_a_wait_that_the_deadline_forbids_costs_nothing(clock: SteeredClock) -> None:
    budget = budget_of(clock, ratio=0, floor=3)
    Stage(clock, {"budget": budget}).play(Reply(503, {"Retry-After": "3600"}))
    assert left_in(budget) == 3


# --- Breaker -------------------------------------------------------------------------------------


def test_the_breaker_sees_every_attempt(clock: SteeredClock) -> None:
    stage = Stage(clock, {"breaker": opened(clock, calls=3)})
    stage.play(503, Trouble.READ, 500)
    assert stage.gear.breaker.state is State.OPEN  # type: ignore[union-attr]


@pytest.mark.parametrize("end", [400, 402, 404, 409, 422, Trouble.POOL])
def test_what_says_nothing_about_the_server_is_neutral_to_the_breaker(
    clock: SteeredClock, end: int | Trouble
) -> None:
    stage = Stage(clock, {"breaker": opened(clock), "policy": CallPolicy(attempts=1)})
    stage.play(end)
    assert stage.gear.breaker.state is State.CLOSED  # type: ignore[union-attr]


def test_our_own_timeout_is_a_failure_to_the_breaker(clock: SteeredClock) -> None:
    stage = Stage(clock, {"breaker": opened(clock)})
    stage.play(Trouble.TIMEOUT)
    assert stage.gear.breaker.state is State.OPEN  # type: ignore[union-attr]


def test_with_an_open_breaker_nothing_is_sent_and_the_caller_hears_when_to_ask(
    clock: SteeredClock,
) -> None:
    stage = Stage(clock, {"breaker": opened(clock)})
    stage.play(500)
    play = stage.play()
    assert play.sent == []
    with pytest.raises(BreakerOpen) as raised:
        play.result.unwrap()  # type: ignore[union-attr]
    assert raised.value.retry_after == pytest.approx(5, abs=0.2)
    (attempt,) = raised.value.attempts  # type: ignore[attr-defined]
    assert (attempt.breaker, attempt.stop) == ("refused", Stop.BREAKER)


def test_a_breaker_that_opens_during_a_call_leaves_the_last_real_result(
    clock: SteeredClock,
) -> None:
    """That the breaker is open is less than what the server said."""
    stage = Stage(clock, {"breaker": opened(clock)})
    play = stage.play(Trouble.READ)
    with pytest.raises(Broken):
        play.result.unwrap()  # type: ignore[union-attr]
    assert [attempt.breaker for attempt in stage.attempts] == ["admitted", "refused"]


def test_cancellation_frees_the_probe_and_counts_against_nobody(clock: SteeredClock) -> None:
    breaker = opened(clock)
    stage = Stage(clock, {"breaker": breaker, "policy": CallPolicy(attempts=1)})
    stage.play(500)
    clock.advance(6)
    loop = stage.open()
    assert isinstance(loop.begin(), Send)
    assert not isinstance(stage.open().begin(), Send)
    loop.cancel()
    assert breaker.state is State.HALF_OPEN
    assert isinstance(stage.open().begin(), Send)
    assert stage.attempts[-1].stop is Stop.CANCELLED


# --- Hedge ---------------------------------------------------------------------------------------


@pytest.fixture
def hedging(clock: SteeredClock) -> Hedging:
    """Has learnt that a call takes 0.2 s."""
    hedging = Hedging(HedgePolicy(minimum=5), clock=clock)
    for _ in range(5):
        hedging.latencies.add(0.2)
    return hedging


def first_step(stage: Stage, method: str = "POST") -> Send:
    step = stage.open(method).begin()
    assert isinstance(step, Send)
    return step


@pytest.mark.parametrize(
    ("method", "policy", "delay"),
    [
        ("GET", {}, 0.2),
        ("POST", {}, 0.2),
        ("POST", {"server_dedupes": False}, None),
        ("POST", {"make_keys": False}, None),
        ("GET", {"server_dedupes": False}, 0.2),
        ("GET", {"attempt_timeout": 0.15}, None),
    ],
)
def test_a_second_copy_is_planned_only_where_it_does_no_harm_and_has_time(
    clock: SteeredClock, hedging: Hedging, method: str, policy: dict[str, bool], delay: float | None
) -> None:
    stage = Stage(clock, {"hedging": hedging, "policy": CallPolicy(**policy)})  # type: ignore[arg-type]
    assert first_step(stage, method).hedge_after == delay


def test_nothing_is_hedged_while_the_95th_percentile_is_unknown(clock: SteeredClock) -> None:
    stage = Stage(clock, {"hedging": Hedging(clock=clock)})
    assert first_step(stage).hedge_after is None


def test_a_probe_is_not_hedged(clock: SteeredClock, hedging: Hedging) -> None:
    """Its permit is for one request."""
    stage = Stage(clock, {"hedging": hedging, "breaker": opened(clock)})
    stage.play(500)
    clock.advance(6)
    assert first_step(stage, "GET").hedge_after is None


def test_hedges_are_paid_from_the_budget_without_the_floor(
    clock: SteeredClock, hedging: Hedging
) -> None:
    stage = Stage(clock, {"hedging": hedging, "budget": budget_of(clock, ratio=0.1, floor=100)})
    for _ in range(9):
        loop = stage.open()
        loop.begin()
        assert not loop.pay_for_copy()
    loop = stage.open()
    loop.begin()
    assert loop.pay_for_copy()
    assert not loop.pay_for_copy()


def test_a_copy_that_was_not_sent_is_paid_back(clock: SteeredClock, hedging: Hedging) -> None:
    budget = budget_of(clock, ratio=1, floor=0)
    stage = Stage(clock, {"hedging": hedging, "budget": budget})
    loop = stage.open()
    loop.begin()
    assert loop.pay_for_copy()
    loop.copy_unsent()
    loop.ended(loop.answered(Reply(200)))
    assert left_in(budget) == 1
    assert not stage.attempts[-1].hedged


def test_an_attempt_without_a_copy_is_not_called_hedged(
    clock: SteeredClock, hedging: Hedging
) -> None:
    """Though the one before it was."""
    budget = budget_of(clock, ratio=10)
    stage = Stage(clock, {"hedging": hedging, "budget": budget, "breaker": opened(clock)})
    loop = stage.open()
    loop.begin()
    assert loop.pay_for_copy()
    loop.ended(loop.failed(Trouble.READ, Broken()))
    loop.slept()
    assert [attempt.hedged for attempt in stage.attempts] == [True, False]


def test_the_copy_has_what_is_left_of_the_attempts_time_and_says_so(
    clock: SteeredClock, hedging: Hedging
) -> None:
    loop = Stage(clock, {"hedging": hedging}).open()
    step = loop.begin()
    assert isinstance(step, Send)
    clock.advance(0.2)
    request, timeout = loop.copy()
    assert timeout == pytest.approx(step.timeout - 0.2)
    assert int(request.headers["x-request-deadline-ms"]) < timeout * 1000
    for name in ("idempotency-key", "x-retry-attempt"):
        assert request.headers[name] == step.request.headers[name]
    assert request.body == step.request.body
