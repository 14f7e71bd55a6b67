"""The contention model: its two engines agree, and give the published numbers."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from idempotency.client.backoff import Backoff, Fixed
from idempotency.client.simulation import contention, rounds, strategies
from tests.benchmarks import published

KNOWN = published.CALLS
ENGINES = ["heap", "rounds"]


class Scripted:
    """What each client draws, from a source of its own: the same whoever asks, in any order."""

    def __init__(self, name: str, clients: int) -> None:
        self.legs = [random.Random(f"legs {client}") for client in range(clients)]
        strategy = contention.strategy(name)
        self.waits = [strategy.waits(random.Random(f"waits {client}")) for client in range(clients)]

    def leg(self, client: int) -> float:
        return abs(self.legs[client].gauss(contention.LEG, contention.SPREAD))

    def wait(self, client: int) -> float:
        return next(self.waits[client])

    def legs_of(self, who: Any, count: int) -> Any:
        return np.array([[self.leg(client) for _ in range(count)] for client in who]).T

    def waits_of(self, who: Any) -> Any:
        return np.array([self.wait(client) for client in who])


@pytest.mark.parametrize("clients", [1, 2, 40])
@pytest.mark.parametrize("name", strategies.NAMES)
def test_both_engines_play_the_same_contest(name: str, clients: int) -> None:
    def nothing(successes: int) -> None:
        pass

    script = Scripted(name, clients)
    by_heap = contention.by_heap(clients, script.leg, script.wait, record=True, tell=nothing)
    script = Scripted(name, clients)
    by_rounds = rounds.by_rounds(
        clients, script.legs_of, script.waits_of, record=True, tell=nothing
    )
    assert by_rounds.calls == by_heap.calls
    assert by_rounds.duration == by_heap.duration
    assert by_rounds.arrivals == by_heap.arrivals
    assert by_rounds.waited == pytest.approx(by_heap.waited)


class Shared(random.Random):
    """Draws that ``backoff.py`` and the arrays can both be given."""

    def __init__(self, draws: list[float]) -> None:
        super().__init__()
        self.draws: Iterator[float] = iter(draws)

    def random(self) -> float:
        return next(self.draws)


class Column:
    """Of a numpy generator, the one method that the arrays use: the next draw of everyone."""

    def __init__(self, draws: list[list[float]]) -> None:
        self.columns = iter(zip(*draws, strict=True))

    def random(self, size: int) -> Any:
        column = next(self.columns)
        assert len(column) == size
        return np.array(column)


@pytest.mark.parametrize("name", strategies.NAMES)
def test_waits_in_arrays_are_those_of_the_shipped_strategies(name: str) -> None:
    clients, steps = 50, 14  # 10 ms · 2ⁿ reaches the cap of 2 s at n = 8
    source = random.Random(4)
    draws = [[source.random() for _ in range(steps)] for _ in range(clients)]
    strategy = contention.strategy(name)
    generator: Any = Column(draws)
    arrays = rounds.waits(strategy, clients, generator)
    singly = [strategy.waits(Shared(draw)) for draw in draws]
    for _ in range(steps):
        assert arrays(np.arange(clients)).tolist() == pytest.approx([next(one) for one in singly])


def test_each_client_doubles_its_own_ceiling() -> None:
    arrays = rounds.waits(contention.strategy("exponential"), 3, np.random.default_rng(1))
    assert arrays(np.array([0, 2])).tolist() == [0.01, 0.01]
    assert arrays(np.array([2, 1])).tolist() == [0.02, 0.01]
    assert arrays(np.array([0, 1, 2])).tolist() == [0.02, 0.02, 0.04]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", KNOWN[100])
def test_a_hundred_clients_make_the_known_calls(name: str, engine: str) -> None:
    runs = [contention.run(name, 100, seed=seed, engine=engine) for seed in range(1, 21)]
    mean = statistics.fmean(run.tally.calls for run in runs)
    assert mean == pytest.approx(KNOWN[100][name], rel=0.05)


@pytest.mark.parametrize("name", KNOWN[1000])
def test_a_thousand_clients_make_the_known_calls(name: str) -> None:
    runs = [contention.run(name, 1000, seed=seed, engine="rounds") for seed in (1, 2)]
    mean = statistics.fmean(run.tally.calls for run in runs)
    assert mean == pytest.approx(KNOWN[1000][name], rel=0.05)


def test_of_ten_thousand_clients_those_with_full_jitter_do_not_make_the_fewest_calls() -> None:
    equal, full = (contention.run(name, 10_000, seed=1) for name in ("equal", "full"))
    for run in (equal, full):
        assert run.tally.calls == pytest.approx(KNOWN[10_000][run.strategy], rel=0.05)
        assert run.fluid_calls == pytest.approx(run.tally.calls, rel=0.1)
    assert equal.tally.calls < 0.8 * full.tally.calls


def test_the_first_ceiling_is_twice_the_base_and_never_above_the_cap() -> None:
    assert next(contention.strategy("exponential").waits()) == 0.01
    assert next(contention.strategy("exponential", base=0.3, cap=0.5).waits()) == 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_alone_succeeds_at_once(engine: str) -> None:
    run = contention.run("full", 1, seed=1, engine=engine)
    assert (run.tally.calls, run.tally.waited) == (1, 0)
    assert run.tally.duration == pytest.approx(0.03, abs=0.02)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_seed_repeats_a_run_and_another_one_does_not(engine: str) -> None:
    first, again, other = (contention.run("full", 50, seed=s, engine=engine) for s in (1, 1, 2))
    assert first == again
    assert first.tally != other.tally


@pytest.mark.parametrize("engine", ENGINES)
def test_every_call_is_in_the_series_and_every_success_is_told(engine: str) -> None:
    told: list[int] = []
    run = contention.run("equal", 60, seed=3, engine=engine, record=True, tell=told.append)
    series = run.series()
    assert sum(series) == run.tally.calls
    assert len(series) == math.floor(run.tally.duration / contention.BUCKET) + 1
    assert sum(told) == 60


@pytest.mark.parametrize("engine", ENGINES)
def test_arrivals_are_not_kept_unless_asked_for(engine: str) -> None:
    assert contention.run("equal", 10, seed=3, engine=engine).series() == []


def test_without_numpy_the_heap_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contention.run("full", 5, seed=1).engine == "rounds"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert contention.run("full", 5, seed=1).engine == "heap"


class Patient:
    """A strategy of somebody else's."""

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        while True:
            yield 1.5


def test_the_heap_takes_any_strategy_and_the_arrays_only_the_six() -> None:
    own: Backoff = Patient()
    mine = contention.run("patient", 20, seed=1, backoff=own, engine="heap")
    same = contention.run("fixed", 20, seed=1, backoff=Fixed(1.5), engine="heap")
    assert mine.tally == same.tally
    with pytest.raises(TypeError, match="Patient: use the heap engine"):
        contention.run("patient", 20, seed=1, backoff=own, engine="rounds")


def test_there_must_be_a_client_and_a_known_strategy() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        contention.run("full", 0, seed=1)
    with pytest.raises(KeyError, match="unknown"):
        contention.run("unknown", 1, seed=1)
