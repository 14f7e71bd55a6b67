"""A hook for every attempt: what it came to, and what was decided after it.

Observers are told in the thread (or event loop) of the call, so they must not take long. What they
raise is logged and changes nothing. They never learn a key, a body or a URL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from idempotency.client.breaker import State
from idempotency.client.classification import Verdict
from idempotency.client.history import Attempt, Stop

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["LoggingObserver", "Observer", "PrometheusObserver"]

logger = logging.getLogger("idempotency.client")


class Observer(Protocol):
    """Whoever wants to know of attempts."""

    def attempt_ended(self, attempt: Attempt) -> None:
        """An attempt has ended, or was refused by the breaker. Called once for each."""
        ...


def tell(observer: Observer, attempt: Attempt) -> None:
    """Tell the observer, whose failure is not the call's."""
    try:
        observer.attempt_ended(attempt)
    except Exception:
        logger.exception("an observer of attempts failed")


class LoggingObserver:
    """One line an attempt: DEBUG for a success, INFO before a retry and for a final answer, WARNING
    for a call that failed.

    Structured logs get what it says as fields, too (``extra``): ``attempt`` is its number, of
    ``attempts``; the others are named as in ``Attempt``, and hold plain values.
    """

    def __init__(self, log: logging.Logger = logger) -> None:
        self._log = log

    def attempt_ended(self, attempt: Attempt) -> None:
        """Write the line."""
        level = _level(attempt)
        if self._log.isEnabledFor(level):
            name = f"{attempt.dependency} {attempt.operation}"
            self._log.log(level, "%s: %s", name, attempt, extra=_fields(attempt))


def _fields(attempt: Attempt) -> dict[str, Any]:
    """The attempt as JSON can hold it: written as it is, a named tuple comes out as a bare list."""
    named = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in attempt._asdict().items()
    }
    return {"attempt": named.pop("number"), "attempts": named.pop("maximum"), **named}


def _level(attempt: Attempt) -> int:
    if attempt.verdict is Verdict.SUCCESS:
        return logging.DEBUG
    failed = attempt.verdict is not Verdict.ANSWER and attempt.stop is not None
    return logging.WARNING if failed and attempt.stop is not Stop.CANCELLED else logging.INFO


_STATES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class PrometheusObserver:
    """Counts and times for Prometheus. Needs ``prometheus-client`` (the extra ``metrics``).

    ==========================================  ===========================================
    ``idempotency_client_attempts_total``       attempts, by verdict and number (``1``, ``2``…)
    ``idempotency_client_attempt_seconds``      how long they took, by verdict
    ``idempotency_client_stops_total``          calls that ended, by the reason
    ``idempotency_client_hedges_total``         attempts of two copies
    ``idempotency_client_breaker_state``        0 closed, 1 half open, 2 open
    ==========================================  ===========================================

    Each has the labels ``dependency`` and ``operation``: names out of code, so their number is
    bounded. An attempt beyond the ninth counts as ``10+``.

    The breaker's state is there once it has changed (``breaker_listener``). Of several processes
    the last one that saw another state is believed: right for a ``SharedBreaker``, and a hint where
    each process has a breaker of its own.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry``: the default one unless given. One observer for each registry."""
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        where: dict[str, Any] = {"registry": registry or REGISTRY}
        names = ["dependency", "operation"]
        self._attempts = Counter(
            "idempotency_client_attempts",
            "Attempts of calls.",
            [*names, "verdict", "number"],
            **where,
        )
        self._seconds = Histogram(
            "idempotency_client_attempt_seconds",
            "Seconds an attempt took.",
            [*names, "verdict"],
            **where,
        )
        self._stops = Counter(
            "idempotency_client_stops", "Calls that ended.", [*names, "reason"], **where
        )
        self._hedges = Counter(
            "idempotency_client_hedges", "Attempts of two copies.", names, **where
        )
        self._breaker = Gauge(
            "idempotency_client_breaker_state",
            "The breaker as of its last change: 0 closed, 1 half open, 2 open.",
            names,
            multiprocess_mode="livemostrecent",
            **where,
        )

    def breaker_listener(self, dependency: str, operation: str) -> Callable[[State, State], None]:
        """What a breaker of that operation is given as ``on_change``."""
        gauge = self._breaker.labels(dependency, operation)
        return lambda old, new: gauge.set(_STATES[new])

    def attempt_ended(self, attempt: Attempt) -> None:
        """Count the attempt."""
        where = (attempt.dependency, attempt.operation)
        number = str(attempt.number) if attempt.number < 10 else "10+"
        verdict = attempt.verdict.value
        self._attempts.labels(*where, verdict, number).inc()
        if attempt.breaker != "refused":
            self._seconds.labels(*where, verdict).observe(attempt.seconds)
        if attempt.stop is not None:
            self._stops.labels(*where, attempt.stop.value).inc()
        if attempt.hedged:
            self._hedges.labels(*where).inc()
