"""The one-sample Kolmogorov-Smirnov test, and how far a sample may stray."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

#: Chance that a right implementation fails one comparison; the seeds are fixed, so it never does.
SIGNIFICANCE = 1e-4


def distance(sample: Sequence[float], cdf: Callable[[float], float]) -> float:
    """The largest gap between the sample's distribution and the stated one."""
    n = len(sample)
    return max(
        max((rank + 1) / n - cdf(value), cdf(value) - rank / n)
        for rank, value in enumerate(sorted(sample))
    )


def critical_distance(n: int) -> float:
    """Kolmogorov's asymptotic bound: ``sqrt(-ln(significance / 2) / 2n)``."""
    return math.sqrt(-math.log(SIGNIFICANCE / 2) / (2 * n))


def follows(sample: Sequence[float], cdf: Callable[[float], float]) -> bool:
    """Whether the sample may come from the stated distribution."""
    return distance(sample, cdf) < critical_distance(len(sample))


def uniform(low: float, high: float) -> Callable[[float], float]:
    """The distribution function of U(low, high)."""
    return lambda value: min(1.0, max(0.0, (value - low) / (high - low)))
