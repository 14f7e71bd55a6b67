"""The recovery model: what retries do after an outage, and what a budget does."""

from __future__ import annotations

import functools
import statistics
from dataclasses import replace

import pytest

from idempotency.client.simulation import recovery
from idempotency.client.simulation.recovery import NO_RETRIES, Aftermath, Scenario
from tests.benchmarks import published

#: At 850 calls a second; shorter than the default, because the load settles within seconds.
BUSY = Scenario(outage_from=5, outage_until=25, until=60)
#: At 800 a calm server stays calm with jittered retries.
CALM = replace(BUSY, rate=800)
JITTERED = ["equal", "full", "decorrelated"]


@functools.cache
def played(name: str, scenario: Scenario, ratio: float | None, seed: int) -> Aftermath:
    return recovery.run(name, scenario, seed=seed, ratio=ratio)


def good_after(name: str, scenario: Scenario, ratio: float | None = None, seeds: int = 1) -> float:
    runs = [played(name, scenario, ratio, seed) for seed in range(1, seeds + 1)]
    return statistics.fmean(run.good_rate(30, scenario.until) for run in runs)


# One run without a budget differs from the next by a tenth, so the mean of several is compared.
ENOUGH = {(NO_RETRIES, None): 1, ("full", 0.1): 1, ("full", None): 6, ("immediate", None): 8}


@pytest.mark.parametrize(("name", "ratio", "known"), published.GOOD_ANSWERS)
def test_good_answers_after_the_outage_are_as_known(
    name: str, ratio: float | None, known: float
) -> None:
    good = good_after(name, BUSY, ratio, seeds=ENOUGH[name, ratio])
    assert good == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize("name", JITTERED)
def test_without_a_budget_the_outage_never_ends(name: str) -> None:
    run = played(name, CALM, None, 1)
    assert run.good_rate(0, 5) > 0.97 * CALM.rate
    assert run.good_rate(5, 25) == 0
    assert run.good_rate(40, 60) < 0.4 * CALM.rate
    assert run.load(40, 60) > 3 * CALM.rate


@pytest.mark.parametrize("name", JITTERED)
def test_with_a_budget_the_server_is_well_a_second_after_the_outage(name: str) -> None:
    run = played(name, CALM, 0.1, 1)
    assert run.good_rate(26, 27) > 0.9 * CALM.rate
    assert run.good_rate(26, 60) == pytest.approx(run.good_rate(0, 5), rel=0.03)


@pytest.mark.parametrize("name", ["immediate", "fixed", "exponential"])
def test_retries_in_step_collapse_without_any_outage(name: str) -> None:
    scenario = Scenario(rate=850, outage_from=0, outage_until=0, until=40)
    assert recovery.run(name, scenario, seed=1).good_rate(30, 40) < 0.5 * scenario.rate


@pytest.mark.parametrize("name", ["immediate", "full"])
def test_the_budget_bounds_the_load_at_every_time(name: str) -> None:
    alone, budget = (
        played(kind, BUSY, ratio, 1) for kind, ratio in ((NO_RETRIES, None), (name, 0.1))
    )
    calls = attempts = 0
    for first, all_attempts in zip(alone.attempts, budget.attempts, strict=True):
        calls += first
        attempts += all_attempts
        # Both see the same calls. Retries of the last slices may still be on their way.
        assert calls <= attempts <= 1.1 * calls + 1


def test_the_simulation_agrees_with_the_formula() -> None:
    alone = replace(BUSY, attempts=1)
    assert good_after(NO_RETRIES, BUSY) == pytest.approx(
        recovery.steady(alone, calm=True), rel=0.02
    )
    assert good_after("full", BUSY, seeds=6) == pytest.approx(
        recovery.steady(BUSY, calm=False), rel=0.05
    )
    assert good_after("full", BUSY, 0.1) == pytest.approx(
        recovery.steady(BUSY, calm=False, ratio=0.1), rel=0.02
    )


def test_at_800_a_second_two_loads_hold_themselves_up() -> None:
    assert recovery.steady(CALM, calm=True) == pytest.approx(800, rel=0.01)
    assert recovery.steady(CALM, calm=False) == pytest.approx(251, rel=0.01)
    assert recovery.steady(CALM, calm=True, ratio=0.1) == pytest.approx(
        recovery.steady(CALM, calm=False, ratio=0.1)
    )


def test_where_there_is_room_every_call_is_answered_at_once() -> None:
    scenario = Scenario(rate=100, capacity=20_000, outage_from=0, outage_until=0, until=20)
    run = recovery.run("full", scenario, seed=1)
    assert run.good == run.attempts
    assert run.load(0, 20) == pytest.approx(100, rel=0.1)


def test_turning_away_costs_what_serving_would_need() -> None:
    scenario = Scenario()
    assert [scenario.served(x) for x in (0, 1, 10)] == [0, 1, 10]
    served = [scenario.served(x) for x in range(10, 40)]
    assert served == sorted(served, reverse=True)
    for x in range(10, 34):
        assert scenario.served(x) + 0.3 * (x - scenario.served(x)) == pytest.approx(10)
    assert scenario.served(34) == 0
    assert replace(scenario, rejection=0).served(1000) == 10


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_during_the_outage_every_call_is_tried_as_often_as_allowed(attempts: int) -> None:
    scenario = Scenario(rate=500, outage_from=0, outage_until=30, until=31, attempts=attempts)
    run = recovery.run("fixed", scenario, seed=1)
    assert run.good_rate(0, 30) == 0
    assert run.load(10, 30) == pytest.approx(attempts * 500, rel=0.03)


def test_a_seed_repeats_a_run_and_another_one_does_not() -> None:
    short = Scenario(outage_from=1, outage_until=2, until=5)
    first, again, other = (recovery.run("full", short, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.attempts != other.attempts


def test_every_second_is_told() -> None:
    told: list[int] = []
    short = Scenario(outage_from=1, outage_until=2, until=5)
    recovery.run(NO_RETRIES, short, seed=1, tell=told.append)
    assert told == [1] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"outage_from": 50},
        {"until": 40},
        {"until": float("inf")},
        {"rate": 0},
        {"capacity": 99},
        {"slice": 0},
        {"rejection": 1},
        {"attempts": 0},
    ],
)
def test_a_scenario_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(Scenario(), **wrong)  # type: ignore[arg-type]
