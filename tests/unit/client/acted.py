"""Acting the steps of an attempt loop, without a transport and without time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from idempotency.client.attempts import AttemptLoop, Done, Send, Sleep
from idempotency.client.breaker import CircuitBreaker
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.classification import Trouble
from idempotency.client.history import Attempt, CallResult
from idempotency.client.messages import Request
from idempotency.client.policy import CallPolicy, Gear
from tests.unit.client.clocks import SteeredClock


@dataclass
class Reply:
    """An answer as transports return it."""

    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


def problem(status: int, code: str, retry: str = "same_key", **headers: str) -> Reply:
    """An answer of the server half."""
    body = json.dumps({"code": code, "retry": retry}).encode()
    return Reply(status, {"content-type": "application/problem+json", **headers}, body)


IN_USE = problem(409, "idempotency_key_in_use", **{"retry-after": "1"})


class Broken(Exception):
    """What the library for HTTP raises."""


End = int | Reply | Trouble


@dataclass
class Play:
    """A call, acted to its end: what was sent, how long it slept, how it ended."""

    clock: SteeredClock
    sent: list[Send] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    result: CallResult[Reply] | None = None

    def act(self, loop: AttemptLoop[Reply], *ends: End, took: float = 0.0) -> CallResult[Reply]:
        """Every attempt takes ``took`` seconds, and ends as told."""
        script = iter(ends)
        step: Send | Sleep | Done[Reply] = loop.begin()
        while not isinstance(step, Done):
            if isinstance(step, Sleep):
                self.slept.append(step.seconds)
                self.clock.advance(step.seconds)
                step = loop.slept()
                continue
            self.sent.append(step)
            self.clock.advance(took)
            end = next(script)
            if isinstance(end, Trouble):
                self.errors.append(Broken(f"{end.value} of attempt {len(self.sent)}"))
                step = loop.ended(loop.failed(end, self.errors[-1]))
            else:
                reply = Reply(end) if isinstance(end, int) else end
                step = loop.ended(loop.answered(reply))
        assert next(script, None) is None, "there were fewer attempts than ends"
        self.result = step.result
        return step.result

    def header(self, name: str) -> list[str | None]:
        """The value of a header on each attempt."""
        return [send.request.headers.get(name) for send in self.sent]


@dataclass
class Stage:
    """The gear of one operation, on a clock that the test moves."""

    clock: SteeredClock
    options: dict[str, Any] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        defaults: dict[str, Any] = {
            "policy": CallPolicy(),
            "breaker": CircuitBreaker(clock=self.clock),
            "budget": RetryBudget(BudgetPolicy(floor=100), clock=self.clock),
        }
        self.gear = Gear(
            "gateway",
            "charge",
            clock=self.clock,
            observers=(self,),
            **{**defaults, **self.options},
        )

    def attempt_ended(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def open(
        self, method: str = "POST", *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AttemptLoop[Reply]:
        """A call of ours."""
        request = Request(method, "https://gateway.example/charges", headers or {}, b"{}")
        return AttemptLoop(self.gear, request, **options)

    def play(self, *ends: End, method: str = "POST", took: float = 0.0, **options: Any) -> Play:
        """Make a call whose attempts end like this."""
        play = Play(self.clock)
        play.act(self.open(method, **options), *ends, took=took)
        return play
