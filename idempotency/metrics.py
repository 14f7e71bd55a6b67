"""Counts what the signals say, for Prometheus when prometheus-client is installed. No key is ever a
label."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.dispatch import receiver

from idempotency import signals

try:
    from prometheus_client import Counter
except ImportError:  # the ``metrics`` extra is not installed: the signals remain
    Counter = None  # type: ignore[assignment,misc]

#: Outcomes of keyed requests: executed, replayed, in_use, mismatch, takeover, released, failed,
#: in_doubt (once for a key that came to be so, by a request or by the job), expired (the key was
#: used before and ran out), rejected (any other refusal).
REQUESTS = (
    None
    if Counter is None
    else Counter("idempotency_requests", "Keyed requests by outcome.", ["route", "outcome"])
)

_OUTCOME_OF_CODE = {
    "idempotency_key_in_use": "in_use",
    "idempotency_key_reused": "mismatch",
}


def count(route: str, outcome: str) -> None:
    """One more request on this route that ended like this."""
    if REQUESTS is not None:
        _labelled(REQUESTS, route, outcome).inc()


@cache
def _labelled(counter: Any, route: str, outcome: str) -> Any:
    """One of the counter's children. Finding it by its labels costs more than counting."""
    return counter.labels(route=route, outcome=outcome)


@receiver(signals.key_claimed)
def _claimed(*, route: str, takeover: bool, reused: bool, **kwargs: Any) -> None:
    if takeover:
        count(route, "takeover")
    if reused:
        count(route, "expired")


@receiver(signals.key_completed)
def _completed(*, route: str, **kwargs: Any) -> None:
    count(route, "executed")


@receiver(signals.key_replayed)
def _replayed(*, route: str, **kwargs: Any) -> None:
    count(route, "replayed")


@receiver(signals.key_rejected)
def _rejected(*, route: str, code: str, **kwargs: Any) -> None:
    count(route, _OUTCOME_OF_CODE.get(code, "rejected"))


@receiver(signals.key_released)
def _released(*, route: str, **kwargs: Any) -> None:
    count(route, "released")


@receiver(signals.key_failed)
def _failed(*, route: str, **kwargs: Any) -> None:
    count(route, "failed")


@receiver(signals.key_in_doubt)
def _in_doubt(*, route: str, **kwargs: Any) -> None:
    count(route, "in_doubt")
