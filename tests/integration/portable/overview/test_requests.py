"""The series of the last day, out of what was counted."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from idempotency.overview.requests import all_durations, all_series, retry_share
from idempotency.traffic import MINUTES, Traffic

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def traffic(**last: int) -> Traffic:
    """A day in which only the last minute had requests."""
    counts = {outcome: [0] * (MINUTES - 1) + [number] for outcome, number in last.items()}
    return Traffic(until=NOW, since=NOW, counts=counts)


def test_every_series_has_every_minute_also_without_a_request() -> None:
    found = all_series(traffic())
    assert [series.name for series in found] == [
        *("executed", "replayed", "rejected", "taken_over", "failed"),
    ]
    assert {len(series.minutes) for series in found} == {MINUTES}
    assert {(series.day, series.hour, series.peak) for series in found} == {(0, 0, 0)}


def test_refusals_of_every_kind_are_one_series() -> None:
    found = {
        series.name: series for series in all_series(traffic(in_use=2, mismatch=3, released=1))
    }
    assert found["rejected"].peak == 6
    assert found["rejected"].hours == [0] * 23 + [6]
    assert found["executed"].day == 0


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({"takeover": 1}, None),
        ({"executed": 10}, 0.0),
        ({"executed": 6, "replayed": 2, "in_use": 2}, 0.4),
        # The takeover was executed in the end: one request, and it is a retry.
        ({"executed": 4, "takeover": 1}, 0.25),
        ({"executed": 1, "mismatch": 1}, 0.0),
    ],
)
def test_the_share_of_retries(counts: dict[str, int], expected: float | None) -> None:
    assert retry_share(traffic(**counts), 60) == expected


def test_the_most_frequent_durations_come_first() -> None:
    found = all_durations(
        {"replayed": {0.005: 4}, "executed": {0.005: 90, 0.1: 9, math.inf: 1}, "failed": {}}
    )
    assert [(one.outcome, one.number, one.p50, one.p95, one.p99) for one in found] == [
        ("executed", 100, 0.005, 0.1, 0.1),
        ("replayed", 4, 0.005, 0.005, 0.005),
    ]
