"""Counts what the signals say and times what the engine runs, for Prometheus when prometheus-client
is installed. No key is ever a label."""

from __future__ import annotations

import os
import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from functools import cache, wraps
from time import perf_counter
from typing import Any, TypeVar, cast

from idempotency import signals, traffic
from idempotency.signals import Told

try:
    from prometheus_client import Counter, Histogram
except ImportError:  # the ``metrics`` extra is not installed: the signals remain
    Counter = Histogram = None  # type: ignore[assignment,misc]

Run = TypeVar("Run", bound=Callable[..., Any])

#: Outcomes of keyed requests: executed, replayed, in_use, mismatch, takeover, released, failed,
#: in_doubt (once for a key that came to be so, by a request or by the job), expired (the key was
#: used before and ran out), pending (an operation goes on without its caller), unavailable (the
#: database or the other side), over_budget (a retry above the service's budget), rejected (any
#: other refusal). takeover (by a request: the job's are not counted) and expired say how a run
#: began, and are followed by how it ended.
REQUESTS = (
    None
    if Counter is None
    else Counter("idempotency_requests", "Keyed requests by outcome.", ["route", "outcome"])
)
#: From before the claim to after the commit: what the handler takes is in it, authentication and
#: parsing are not. The outcomes are those above by which a request can end, and ``unknown`` where
#: the work was rolled back and its key could not be told so.
DURATIONS = (
    None
    if Histogram is None
    else Histogram(
        "idempotency_request_seconds",
        "Seconds from the claim to the answer.",
        ["route", "outcome"],
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    )
)

_OUTCOME_OF_CODE = {
    "idempotency_key_in_use": "in_use",
    "idempotency_key_reused": "mismatch",
    "retry_budget_exhausted": "over_budget",
    "outcome_pending": "pending",
    "idempotency_unavailable": "unavailable",
    "downstream_unavailable": "unavailable",
}


class _Last(threading.local):
    """The outcome that was counted last in this thread, which is the one that its request ends
    with."""

    outcome = "unknown"


_last = _Last()


def count(route: str, outcome: str) -> None:
    """One more request on this route that ended like this."""
    if REQUESTS is not None:
        _labelled(REQUESTS, route, outcome).inc()
        _last.outcome = outcome


def timed(run: Run) -> Run:
    """Time a function whose first argument after ``self`` is a request with a scope."""
    if DURATIONS is None:
        return run

    @wraps(run)
    def timing(engine: Any, request: Any, *args: Any) -> Any:
        _last.outcome = "unknown"
        began = perf_counter()
        try:
            return run(engine, request, *args)
        finally:
            seconds = perf_counter() - began
            _labelled(DURATIONS, request.scope.route, _last.outcome).observe(seconds)

    return cast(Run, timing)


@cache
def _labelled(metric: Any, route: str, outcome: str) -> Any:
    """One of the metric's children. Finding it by its labels costs more than counting."""
    traffic.begin(counted)
    return metric.labels(route=route, outcome=outcome)


# A forked process has the children of its parent, and none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_labelled.cache_clear)


def counted() -> traffic.Counts:
    """What this process has counted and timed so far, over all routes, as ``traffic`` names it."""
    found: traffic.Counts = Counts()
    for metric in (REQUESTS, DURATIONS):
        for family in () if metric is None else metric.collect():
            _add(found, family.samples)
    return found


def _add(found: traffic.Counts, samples: Iterable[Any]) -> None:
    child, below = None, 0
    for sample in samples:
        outcome, number = sample.labels["outcome"], int(sample.value)
        if sample.name.endswith("_total"):
            found[outcome] += number
        elif sample.name.endswith("_bucket"):
            # Prometheus counts from zero up to each bound.
            if child != (child := (sample.labels["route"], outcome)):
                below = 0
            found[f"{outcome}{traffic.UP_TO}{sample.labels['le']}"] += number - below
            below = number


@signals.key_claimed.heard
def _claimed(told: Told) -> None:
    if told["takeover"] and not told.get("actor"):
        count(told["route"], "takeover")
    if told["reused"]:
        count(told["route"], "expired")
    # A run that ends without a word did not end as it began.
    _last.outcome = "unknown"


@signals.key_completed.heard
def _completed(told: Told) -> None:
    count(told["route"], "executed")


@signals.key_replayed.heard
def _replayed(told: Told) -> None:
    count(told["route"], "replayed")


@signals.key_rejected.heard
def _rejected(told: Told) -> None:
    count(told["route"], _OUTCOME_OF_CODE.get(told["code"], "rejected"))


@signals.key_released.heard
def _released(told: Told) -> None:
    count(told["route"], "released")


@signals.key_failed.heard
def _failed(told: Told) -> None:
    count(told["route"], "failed")


@signals.key_in_doubt.heard
def _in_doubt(told: Told) -> None:
    count(told["route"], "in_doubt")
