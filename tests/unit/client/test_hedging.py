"""When a second copy is sent, and what teaches the delay."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotency.client.classification import Answer, Decision, Trouble, classify
from idempotency.client.hedging import HedgePolicy, Hedging, LatencyWindow, wins
from tests.unit.client.clocks import SteeredClock


def ended(end: int | Trouble | Answer) -> Decision:
    return classify(Answer(end) if isinstance(end, int) else end, method="POST", keyed=True)


def delay(hedging: Hedging) -> float | None:
    return hedging.delay(method="GET", keyed=False, server_dedupes=False)


def learn(hedging: Hedging, seconds: float, times: int, end: int | Trouble = 200) -> None:
    for _ in range(times):
        hedging.learn(seconds, ended(end))


# --- Learning ------------------------------------------------------------------------------------


def test_nothing_is_hedged_while_the_95th_percentile_is_unknown(clock: SteeredClock) -> None:
    """Hedging everything meanwhile doubles the load of a server that just started."""
    hedging = Hedging(clock=clock)
    assert delay(hedging) is None
    learn(hedging, 0.1, 99)
    assert delay(hedging) is None
    learn(hedging, 0.1, 1)
    assert delay(hedging) == 0.1


@pytest.mark.parametrize("end", [500, 503, 402, 404, 409, 429, Trouble.CONNECT, Trouble.TIMEOUT])
def test_failures_teach_nothing(clock: SteeredClock, end: int | Trouble) -> None:
    """They are often fast: a delay learnt from them hedges every good request."""
    hedging = Hedging(clock=clock)
    learn(hedging, 0.2, 100)
    learn(hedging, 0.001, 10_000, end)
    assert delay(hedging) == 0.2


def test_failures_do_not_count_towards_the_hundred(clock: SteeredClock) -> None:
    hedging = Hedging(clock=clock)
    learn(hedging, 0.2, 99)
    learn(hedging, 0.001, 1000, 503)
    assert delay(hedging) is None


def test_successes_are_forgotten_after_a_minute(clock: SteeredClock) -> None:
    hedging = Hedging(clock=clock)
    learn(hedging, 0.2, 100)
    clock.advance(59.9)
    assert delay(hedging) == 0.2
    clock.advance(0.1)
    assert delay(hedging) is None


def test_memory_is_bounded_and_follows_the_latest(clock: SteeredClock) -> None:
    hedging = Hedging(HedgePolicy(remembered=1000), clock=clock)
    learn(hedging, 0.2, 5000)
    learn(hedging, 0.3, 1000)
    assert delay(hedging) == 0.3


@given(
    events=st.lists(st.tuples(st.integers(0, 40), st.floats(0, 10)), max_size=120),
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    minimum=st.integers(1, 20),
)
@settings(deadline=None)
def test_the_quantile_is_that_of_a_sorted_list(
    events: list[tuple[int, float]], quantile: float, minimum: int
) -> None:
    clock, everything = SteeredClock(1000.0), []
    policy = HedgePolicy(quantile=quantile, minimum=minimum, remembered=50)
    latencies = LatencyWindow(policy, clock=clock)
    for eighths, seconds in events:
        clock.advance(eighths / 8)
        latencies.add(seconds)
        everything.append((clock.now, seconds))
        recent = sorted(took for at, took in everything[-50:] if clock.now - at < 60)
        if len(recent) < minimum:
            assert latencies.quantile() is None
        else:
            rank = math.ceil(round(quantile * 100) * len(recent) / 100)
            assert latencies.quantile() == recent[rank - 1]


def test_for_exponential_latencies_the_delay_is_2_996_and_the_extra_load_5_percent(
    clock: SteeredClock,
) -> None:
    rng = random.Random(1)
    policy = HedgePolicy(remembered=100_000)
    latencies = LatencyWindow(policy, clock=clock)
    sample = [rng.expovariate(1) for _ in range(100_000)]
    for seconds in sample:
        latencies.add(seconds)
    learnt = latencies.quantile()
    assert learnt == pytest.approx(2.996, rel=0.02)
    hedged = [took > learnt for took in sample]
    assert sum(hedged) / len(sample) == pytest.approx(0.05, abs=0.001)
    tail = sorted(
        min(took, learnt + rng.expovariate(1)) if took > learnt else took for took in sample
    )
    assert tail[99_000] == pytest.approx(3.800, rel=0.03)
    assert tail[99_900] == pytest.approx(4.952, rel=0.05)


# --- Where a second copy is harmless -------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "keyed", "server_dedupes", "hedged"),
    [
        ("GET", False, False, True),
        ("head", False, False, True),
        ("POST", True, True, True),
        ("POST", True, False, False),
        ("POST", False, True, False),
        ("POST", False, False, False),
        ("DELETE", False, True, False),
    ],
)
def test_only_what_may_be_sent_twice_is_hedged(
    clock: SteeredClock, method: str, keyed: bool, server_dedupes: bool, hedged: bool
) -> None:
    hedging = Hedging(clock=clock)
    learn(hedging, 0.1, 100)
    known = hedging.delay(method=method, keyed=keyed, server_dedupes=server_dedupes)
    assert (known is not None) == hedged


@pytest.mark.parametrize(
    ("end", "won"),
    [
        (200, True), (201, True), (402, True), (422, True), (409, True),
        (503, False), (500, False), (429, False), (401, False), (Trouble.CONNECT, False),
        (Trouble.TIMEOUT, False), (Trouble.TLS, False), (Trouble.CANCELLED, False),
    ],
)  # fmt: skip
def test_a_copy_wins_with_a_success_or_a_final_answer_only(end: int | Trouble, won: bool) -> None:
    """A hedge that failed never kills a good primary."""
    assert wins(ended(end)) is won


def test_a_copy_that_is_told_in_use_loses() -> None:
    """It only says that the other copy is at work."""
    assert not wins(ended(Answer(409, {"Retry-After": "2"})))


@pytest.mark.parametrize(
    "policy",
    [{"quantile": 0}, {"quantile": 1}, {"minimum": 0}, {"minimum": 1001}, {"window": 0}],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        HedgePolicy(**policy)  # type: ignore[arg-type]
