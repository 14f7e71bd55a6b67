"""The requests of the last day as people read them: a few series, and what share were retries."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from idempotency.traffic import MINUTES, Traffic, percentile

HOUR = 60

#: Series → its label, and the outcomes (``metrics.py``) that are in it.
_SERIES: dict[str, tuple[Promise | str, tuple[str, ...]]] = {
    "executed": (_("Executed"), ("executed",)),
    "replayed": (_("Replayed"), ("replayed",)),
    "rejected": (
        _("Rejected"),
        ("in_use", "mismatch", "over_budget", "unavailable", "pending", "released", "rejected"),
    ),
    "taken_over": (_("Taken over"), ("takeover",)),
    "failed": (_("Failed or in doubt"), ("failed", "in_doubt")),
}
#: What a request ends with; a takeover says only how it began.
_ENDINGS = ("executed", "replayed", "rejected", "failed")
#: Whoever hears one of these, or takes over, has been here before.
_OF_RETRIES = ("replayed", "in_use", "over_budget", "takeover")


@dataclass(frozen=True, slots=True)
class Series:
    """A number for each minute of the last day, the oldest first."""

    name: str
    label: Promise | str
    minutes: tuple[int, ...]

    @property
    def day(self) -> int:
        return sum(self.minutes)

    @property
    def hour(self) -> int:
        return sum(self.minutes[-HOUR:])

    @property
    def hours(self) -> list[int]:
        """Sums, the oldest first."""
        return [sum(self.minutes[at : at + HOUR]) for at in range(0, MINUTES, HOUR)]

    @property
    def peak(self) -> int:
        """Of a single minute."""
        return max(self.minutes)


def all_series(traffic: Traffic) -> list[Series]:
    """All series, also those in which nothing happened."""
    return [
        Series(name, label, _sum(traffic, outcomes)) for name, (label, outcomes) in _SERIES.items()
    ]


def _sum(traffic: Traffic, outcomes: tuple[str, ...]) -> tuple[int, ...]:
    counted = [traffic.counts[outcome] for outcome in outcomes if outcome in traffic.counts]
    return tuple(map(sum, zip(*counted, strict=True))) if counted else (0,) * MINUTES


def retry_share(traffic: Traffic, minutes: int) -> float | None:
    """The share of requests, in the last so many minutes, that were retries; None without any.

    At least that: a run after one that failed, and a wrong request under a key that was used, are
    not told from first attempts.
    """
    endings = [outcome for name in _ENDINGS for outcome in _SERIES[name][1]]
    every = sum(_sum(traffic, tuple(endings))[-minutes:])
    return sum(_sum(traffic, _OF_RETRIES)[-minutes:]) / every if every else None


@dataclass(frozen=True, slots=True)
class Durations:
    """How long requests took that ended in one way, in seconds; upper ends of buckets."""

    outcome: str
    number: int
    p50: float
    p95: float
    p99: float


def all_durations(timed: dict[str, dict[float, int]]) -> list[Durations]:
    """The percentiles by outcome, the most frequent one first."""
    found = [
        Durations(outcome, sum(buckets.values()), *points)
        for outcome, buckets in timed.items()
        if (points := _points(buckets))
    ]
    return sorted(found, key=lambda durations: -durations.number)


def _points(buckets: dict[float, int]) -> list[float]:
    points = [percentile(buckets, share) for share in (0.5, 0.95, 0.99)]
    return [point for point in points if point is not None]
