"""Each strategy draws from the distribution it states, at every step."""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.client.backoff import (
    Backoff,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fixed,
    FullJitter,
    Immediate,
)
from tests.unit.client.distributions import follows, uniform

CALLS = 2000
#: 0.1 · 2ⁿ reaches the cap of 20 s at n = 8.
STEPS = range(16)
JITTERED: list[Backoff] = [EqualJitter(), FullJitter(), DecorrelatedJitter()]
ALL: list[Backoff] = [Immediate(), Fixed(), Exponential(), *JITTERED]


def first(n: int, waits: Iterator[float]) -> list[float]:
    return list(itertools.islice(waits, n))


@functools.cache
def columns(strategy: Backoff, seed: int) -> list[tuple[float, ...]]:
    """All first waits of many calls, all second ones, …"""
    rng = random.Random(seed)
    calls = [first(len(STEPS), strategy.waits(rng)) for _ in range(CALLS)]
    return list(zip(*calls, strict=True))


def ceiling(n: int) -> float:
    return min(20.0, 0.1 * 2**n)


def names(strategy: Backoff) -> str:
    return type(strategy).__name__


# --- The stated distributions --------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_full_jitter_is_uniform_from_zero_to_the_ceiling(step: int) -> None:
    sample = columns(FullJitter(), seed=1)[step]
    assert follows(sample, uniform(0, ceiling(step)))


@pytest.mark.parametrize("step", STEPS)
def test_equal_jitter_is_uniform_over_the_upper_half_of_the_ceiling(step: int) -> None:
    sample = columns(EqualJitter(), seed=2)[step]
    assert follows(sample, uniform(ceiling(step) / 2, ceiling(step)))


@pytest.mark.parametrize("step", STEPS)
def test_decorrelated_is_uniform_from_the_base_to_three_times_the_last_wait(step: int) -> None:
    table = columns(DecorrelatedJitter(), seed=3)
    before = table[step - 1] if step else [0.1] * CALLS
    # Where a draw went over the cap, only the range it came from is known: draw within that.
    inner = random.Random(30 + step)
    sample = []
    for last, wait in zip(before, table[step], strict=True):
        low, high = 0.1, 3 * last
        place = (wait - low) / (high - low)
        sample.append(place if wait < 20 else inner.uniform((20 - low) / (high - low), 1))
    assert follows(sample, uniform(0, 1))


@pytest.mark.parametrize("step", STEPS)
def test_exponential_is_exactly_the_ceiling(step: int) -> None:
    assert set(columns(Exponential(), seed=4)[step]) == {ceiling(step)}


def test_immediate_and_fixed_never_vary() -> None:
    assert first(50, Immediate().waits()) == [0.0] * 50
    assert first(50, Fixed(interval=0.7).waits()) == [0.7] * 50


def test_the_comparison_tells_the_strategies_apart() -> None:
    full, equal = columns(FullJitter(), seed=5), columns(EqualJitter(), seed=5)
    assert not follows(full[10], uniform(10, 20))
    assert not follows(equal[10], uniform(0, 20))
    capped_after_the_draw = [min(20.0, wait * 4) for wait in full[7]]
    assert not follows(capped_after_the_draw, uniform(0, 20))


# --- Known values --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_mean_and_variance_of_full_and_equal_jitter_are_those_stated(step: int) -> None:
    v = ceiling(step)
    for strategy, mean, variance in [
        (FullJitter(), v / 2, v**2 / 12),
        (EqualJitter(), 3 * v / 4, v**2 / 48),
    ]:
        sample = columns(strategy, seed=6)[step]
        error = (variance / CALLS) ** 0.5
        assert statistics.fmean(sample) == pytest.approx(mean, abs=4 * error)
        assert statistics.variance(sample) == pytest.approx(variance, rel=0.1)


def test_decorrelated_means_grow_by_half_each_time_while_the_cap_is_far() -> None:
    rng = random.Random(7)
    strategy = DecorrelatedJitter(base=5, cap=2000)
    calls = [first(5, strategy.waits(rng)) for _ in range(20_000)]
    means = [statistics.fmean(column) for column in zip(*calls, strict=True)]
    assert means == pytest.approx([10, 17.5, 28.75, 45.625, 70.9375], rel=0.03)


def test_decorrelated_in_the_long_run_has_mean_912_and_27_percent_at_the_cap() -> None:
    waits = DecorrelatedJitter(base=5, cap=2000).waits(random.Random(8))
    first(1000, waits)
    sample = first(300_000, waits)
    assert statistics.fmean(sample) == pytest.approx(912, rel=0.02)
    assert sample.count(2000) / len(sample) == pytest.approx(0.27, abs=0.01)


# --- Traps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [EqualJitter(), FullJitter()], ids=names)
def test_jitter_does_not_vanish_at_the_cap(strategy: Backoff) -> None:
    """Added before the cap, it does: every wait is then the cap itself."""
    for column in columns(strategy, seed=9)[9:]:
        assert len(set(column)) > CALLS * 0.99
        assert max(column) - min(column) > 9


@given(seed=st.integers(), base=st.floats(1e-6, 10), factor=st.floats(1, 1e6))
@pytest.mark.parametrize("kind", [Exponential, EqualJitter, FullJitter, DecorrelatedJitter])
def test_no_wait_exceeds_the_cap(kind: type[FullJitter], seed: int, base: float, factor: float):
    """Jitter added after the cap does that."""
    strategy = kind(base=base, cap=base * factor)
    assert all(0 <= wait <= strategy.cap for wait in first(60, strategy.waits(random.Random(seed))))


@pytest.mark.parametrize("n", [1024, 1100, 10**6, 10**18, 10**400])
def test_two_to_the_power_of_a_large_n_does_not_overflow(n: int) -> None:
    assert FullJitter().ceiling(n) == 20.0


@pytest.mark.parametrize("strategy", ALL, ids=names)
def test_the_millionth_wait_is_within_the_cap(strategy: Backoff) -> None:
    wait = next(itertools.islice(strategy.waits(random.Random(10)), 10**6, None))
    assert 0 <= wait <= 20


@given(base=st.floats(1e-9, 1e9), n=st.integers(0, 3000), factor=st.floats(1, 1e12))
def test_the_ceiling_is_the_one_of_exact_arithmetic(base: float, n: int, factor: float) -> None:
    cap = base * factor
    exact = min(Fraction(cap), Fraction(base) * 2**n)
    assert Fraction(Exponential(base, cap).ceiling(n)) == exact


def test_ceilings_one_by_one_are_the_ceilings_asked_for() -> None:
    strategy = Exponential(base=0.03, cap=7)
    assert first(40, strategy.ceilings()) == [strategy.ceiling(n) for n in range(40)]


@pytest.mark.parametrize("strategy", JITTERED, ids=names)
def test_the_first_wait_varies_like_the_others(strategy: Backoff) -> None:
    """A first retry after exactly 0.5 s, always, brings all clients back together."""
    assert len(set(columns(strategy, seed=11)[0])) > CALLS * 0.99


def test_decorrelated_waits_shrink_as_well_as_grow() -> None:
    """With the previous wait as the lower bound they only grow."""
    waits = first(1000, DecorrelatedJitter().waits(random.Random(12)))
    shrinking = sum(later < earlier for earlier, later in itertools.pairwise(waits))
    assert shrinking > 300


def test_decorrelated_waits_of_one_call_know_nothing_of_another_call() -> None:
    """State on the shared strategy leaks between calls."""
    strategy = DecorrelatedJitter(base=0.1, cap=1000)
    first(100, strategy.waits(random.Random(13)))
    assert 0.1 <= next(strategy.waits(random.Random(14))) <= 0.3


def test_calls_that_run_at_once_draw_as_if_alone() -> None:
    strategy = DecorrelatedJitter(base=0.1, cap=1000)
    seeds = range(8)
    alone = [first(200, strategy.waits(random.Random(seed))) for seed in seeds]

    in_turn = [strategy.waits(random.Random(seed)) for seed in seeds]
    rounds = [[next(call) for call in in_turn] for _ in range(200)]
    assert [list(waits) for waits in zip(*rounds, strict=True)] == alone

    with ThreadPoolExecutor(8) as pool:
        calls = pool.map(lambda seed: first(200, strategy.waits(random.Random(seed))), seeds)
        assert list(calls) == alone


FORKS = """
import itertools, os, random
from idempotency.client.backoff import DecorrelatedJitter, EqualJitter, FullJitter
random.seed(1)
for strategy in (EqualJitter(), FullJitter(), DecorrelatedJitter()):
    next(strategy.waits())
    for child in range(2):
        if pid := os.fork():
            os.waitpid(pid, 0)
        else:
            waits = list(itertools.islice(strategy.waits(), 4))
            os.write(1, f"{type(strategy).__name__} {waits}\\n".encode())
            os._exit(0)
"""


def test_forked_workers_draw_different_sequences() -> None:
    """Seeded before the fork, a generator gives every worker the same waits."""
    output = subprocess.check_output([sys.executable, "-c", FORKS], text=True)
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[::2]] == [names(strategy) for strategy in JITTERED]
    assert len(set(lines)) == 6


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1), (1, float("inf"))])
@pytest.mark.parametrize("kind", [Exponential, EqualJitter, FullJitter, DecorrelatedJitter])
def test_bounds_that_make_no_sense_are_refused(
    kind: type[FullJitter], base: float, cap: float
) -> None:
    with pytest.raises(ValueError, match="base and cap"):
        kind(base=base, cap=cap)


@pytest.mark.parametrize("interval", [-1, float("inf"), float("nan")])
def test_an_interval_that_makes_no_sense_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        Fixed(interval)
