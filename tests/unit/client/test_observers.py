"""Who is told of attempts, and what they are told."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from idempotency.client.backoff import Fixed
from idempotency.client.breaker import BreakerPolicy, BreakerRegistry, CircuitBreaker, Outcome
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.caller import Caller
from idempotency.client.classification import Trouble, Verdict
from idempotency.client.history import Attempt, Stop
from idempotency.client.messages import Request
from idempotency.client.observers import LoggingObserver, PrometheusObserver
from idempotency.client.policy import CallPolicy
from idempotency.client.testing import ScriptedTransport, no_waiting

SECRET = "key-of-the-caller"
POST = Request(
    "POST", "https://gateway.example/charges?card=4242", {"authorization": SECRET}, b"{}"
)


class Watching:
    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    def attempt_ended(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)


class Failing:
    def attempt_ended(self, attempt: Attempt) -> None:
        raise RuntimeError("no room on the disk")


def call(*ends: Any, observers: Any, floor: int = 100, **options: Any) -> None:
    """Make a call whose attempts end like this, whatever comes of it."""
    options.setdefault("policy", CallPolicy(backoff=Fixed(0.25)))
    budget = RetryBudget(BudgetPolicy(ratio=0, floor=floor))
    caller = Caller(
        ScriptedTransport(*ends), "gateway", observers=observers, budget=budget, **options
    )
    with no_waiting():
        caller.perform(POST, operation="charge", key=SECRET)


def test_an_observer_is_told_of_each_attempt_and_what_was_decided_after_it() -> None:
    watching = Watching()
    call(503, Trouble.TIMEOUT, 201, observers=[watching])
    first, second, third = watching.attempts
    assert (first.dependency, first.operation, first.method) == ("gateway", "charge", "POST")
    assert [(it.number, it.maximum) for it in watching.attempts] == [(1, 3), (2, 3), (3, 3)]
    assert (first.verdict, first.reason, first.status, first.trouble) == (
        Verdict.RETRY,
        "503",
        503,
        None,
    )
    assert (second.reason, second.status, second.trouble) == ("timeout", None, Trouble.TIMEOUT)
    assert [it.wait for it in watching.attempts] == [0.25, 0.25, None]
    assert [it.budget for it in watching.attempts] == ["granted", "granted", "not asked"]
    assert [it.breaker for it in watching.attempts] == ["admitted"] * 3
    assert [it.stop for it in watching.attempts] == [None, None, Stop.DECIDED]
    assert third.verdict is Verdict.SUCCESS
    assert all(it.seconds >= 0 for it in watching.attempts)


def test_an_observer_is_told_what_budget_and_breaker_refused() -> None:
    watching = Watching()
    call(503, observers=[watching], floor=0)
    assert (watching.attempts[0].budget, watching.attempts[0].stop) == ("exhausted", Stop.BUDGET)

    policy = BreakerPolicy(minimum_calls=1)
    breakers = BreakerRegistry(lambda *names: CircuitBreaker(policy))
    call(500, observers=[], breakers=breakers)
    watching = Watching()
    call(observers=[watching], breakers=breakers)
    assert (watching.attempts[0].breaker, watching.attempts[0].stop) == ("refused", Stop.BREAKER)


def test_no_observer_learns_the_key_the_body_or_the_url() -> None:
    watching = Watching()
    call(503, Trouble.READ, 402, observers=[watching])
    told = f"{watching.attempts}{[str(attempt) for attempt in watching.attempts]}"
    for secret in (SECRET, "4242", "charges", "{}"):
        assert secret not in told


def test_an_observer_that_fails_changes_nothing_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watching = Watching()
    call(503, 201, observers=[Failing(), watching])
    assert len(watching.attempts) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "an observer of attempts failed"
    ] * 2


@pytest.mark.parametrize(
    ("ends", "levels"),
    [
        ((201,), ["DEBUG"]),
        ((503, 201), ["INFO", "DEBUG"]),
        ((402,), ["INFO"]),
        ((503, 503, 503), ["INFO", "INFO", "WARNING"]),
        ((Trouble.TLS,), ["WARNING"]),
        ((401,), ["WARNING"]),
    ],
)
def test_the_log_has_a_line_for_each_attempt(
    caplog: pytest.LogCaptureFixture, ends: tuple[Any, ...], levels: list[str]
) -> None:
    caplog.set_level(logging.DEBUG, "idempotency.client")
    call(*ends, observers=[LoggingObserver()])
    assert [record.levelname for record in caplog.records] == levels
    assert SECRET not in caplog.text


def test_the_log_reads_like_this(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "idempotency.client")
    call(503, httpx2.Response(402), observers=[LoggingObserver()])
    assert [record.getMessage() for record in caplog.records] == [
        "gateway charge: attempt 1 of 3: 503 after 0.00 s, then a wait of 0.25 s",
        "gateway charge: attempt 2 of 3: 402 after 0.00 s",
    ]


def test_structured_logs_get_plain_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "idempotency.client")
    call(Trouble.TIMEOUT, 503, observers=[LoggingObserver()], floor=1)
    first, last = (_extra(record) for record in caplog.records)
    assert first.pop("seconds") >= 0
    assert first == {
        "dependency": "gateway",
        "operation": "charge",
        "method": "POST",
        "attempt": 1,
        "attempts": 3,
        "verdict": "retry",
        "reason": "timeout",
        "status": None,
        "trouble": "timeout",
        "hedged": False,
        "breaker": "admitted",
        "budget": "granted",
        "wait": 0.25,
        "stop": None,
    }
    told = [last[name] for name in ("attempt", "status", "trouble", "budget", "wait", "stop")]
    assert told == [2, 503, None, "exhausted", None, "budget"]


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What a formatter of structured logs finds beside the message, through JSON and back."""
    own = {*vars(logging.makeLogRecord({})), "message"}
    found = {name: value for name, value in vars(record).items() if name not in own}
    through: dict[str, Any] = json.loads(json.dumps(found))
    return through


def test_prometheus_counts_attempts_stops_and_seconds() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    call(503, Trouble.TIMEOUT, 201, observers=[observer])
    call(503, observers=[observer], floor=0)
    where = {"dependency": "gateway", "operation": "charge"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"idempotency_client_{name}", {**where, **labels})

    assert value("attempts_total", verdict="retry", number="1") == 2
    assert value("attempts_total", verdict="retry", number="2") == 1
    assert value("attempts_total", verdict="success", number="3") == 1
    assert value("attempt_seconds_count", verdict="retry") == 3
    assert value("stops_total", reason="decided") == 1
    assert value("stops_total", reason="budget") == 1
    assert SECRET not in generate_latest(registry).decode()


def test_labels_are_bounded() -> None:
    registry = CollectorRegistry()
    policy = CallPolicy(attempts=14, backoff=Fixed(0.25))
    call(*[503] * 14, observers=[PrometheusObserver(registry)], policy=policy)
    numbers = {
        sample.labels["number"]
        for metric in registry.collect()
        for sample in metric.samples
        if "number" in sample.labels
    }
    assert numbers == {*map(str, range(1, 10)), "10+"}


def test_hedged_attempts_and_refused_ones_are_counted_as_such() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    watching = Watching()
    call(201, observers=[watching])
    (attempt,) = watching.attempts
    observer.attempt_ended(attempt._replace(hedged=True))
    observer.attempt_ended(attempt._replace(breaker="refused"))
    where = {"dependency": "gateway", "operation": "charge"}
    assert registry.get_sample_value("idempotency_client_hedges_total", where) == 1
    seconds = "idempotency_client_attempt_seconds_count"
    assert registry.get_sample_value(seconds, {**where, "verdict": "success"}) == 1


def test_the_breakers_last_change_is_shown() -> None:
    registry = CollectorRegistry()
    show = PrometheusObserver(registry).breaker_listener("gateway", "charge")
    breaker = CircuitBreaker(BreakerPolicy(minimum_calls=1), on_change=show)

    def state() -> float | None:
        where = {"dependency": "gateway", "operation": "charge"}
        return registry.get_sample_value("idempotency_client_breaker_state", where)

    assert state() == 0
    breaker.settle(breaker.admit(), Outcome.FAILURE)
    assert state() == 2


def test_observers_need_prometheus_only_to_count_for_it() -> None:
    program = """
import sys
sys.modules["prometheus_client"] = None
from idempotency.client import LoggingObserver, PrometheusObserver
LoggingObserver()
try:
    PrometheusObserver()
except ModuleNotFoundError as error:
    assert error.name == "prometheus_client"
else:
    raise AssertionError("it was blocked")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
