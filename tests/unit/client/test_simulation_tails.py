"""The tail model: a second copy after p95, learnt from the answers themselves."""

from __future__ import annotations

import pytest

from idempotency.client.hedging import HedgePolicy
from idempotency.client.simulation import tails


@pytest.mark.parametrize(
    ("q", "alone", "hedged"),
    [(0.5, 0.693, 0.693), (0.95, 2.996, 2.996), (0.99, 4.605, 3.800), (0.999, 6.908, 4.952)],
)
def test_the_formula_gives_the_known_values(q: float, alone: float, hedged: float) -> None:
    assert tails.expected(q) == pytest.approx(alone, abs=5e-4)
    assert tails.expected(q, hedge_at=0.95) == pytest.approx(hedged, abs=5e-4)


def test_a_second_copy_cuts_the_tail_by_the_formula() -> None:
    alone, hedged = (tails.run(100_000, hedged=hedged, seed=1) for hedged in (False, True))
    for q, tolerance in ((0.9, 0.02), (0.99, 0.02), (0.999, 0.05)):
        assert alone.quantile(q) == pytest.approx(tails.expected(q), rel=tolerance)
        assert hedged.quantile(q) == pytest.approx(tails.expected(q, hedge_at=0.95), rel=tolerance)
    assert alone.extra_load == 0
    assert hedged.extra_load == pytest.approx(0.05, abs=0.005)


def test_nothing_is_hedged_before_p95_is_known() -> None:
    policy = HedgePolicy(minimum=100)
    assert tails.run(100, hedged=True, seed=1, policy=policy).copies == 0
    assert tails.run(1000, hedged=True, seed=1, policy=policy).copies > 0


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    tail = tails.Tail(hedged=False, seed=1, latencies=(1.0, 2.0, 3.0, 4.0), copies=0)
    assert [tail.quantile(q) for q in (0, 0.25, 0.26, 0.75, 1)] == [1, 1, 2, 3, 4]


def test_a_seed_repeats_a_run_and_every_request_is_told() -> None:
    told: list[int] = []
    first = tails.run(500, hedged=True, seed=1, tell=told.append)
    assert tails.run(500, hedged=True, seed=1) == first
    assert tails.run(500, hedged=True, seed=2).latencies != first.latencies
    assert sum(told) == len(first.latencies) == 500


def test_there_must_be_a_request() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        tails.run(0, hedged=True, seed=1)
