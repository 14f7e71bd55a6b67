"""What a caller costs: ``python -m tests.benchmarks.client_overhead``.

One keyed POST on loopback by ``httpx2.Client``, and the same by a ``Caller`` with everything on:
key, deadline, budget, breaker, an observer. Interleaved in one run, so that a slow moment of the
machine hits all alike; the server is a process of its own.

``Httpx2Transport`` sends without ``httpx2.Client``, which saves about what the loop costs. How much
that is, the figure of the transport alone says.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import httpx2

from idempotency.client import Attempt, Caller, Httpx2Transport, Request
from tests.integration.client.quick_server import quick_server

ROUNDS = 3000
#: The most that p50 may be of the bare call's.
LIMIT = 1.15

ORDER = {"amount": 1000, "currency": "EUR", "source": "tok_visa", "reference": "order-1"}


@dataclass(frozen=True)
class Overhead:
    """p50 in milliseconds."""

    bare: float
    caller: float
    transport: float

    @property
    def ratio(self) -> float:
        return self.caller / self.bare

    def line(self) -> str:
        return (
            f"{'client':<22} bare p50 {self.bare:6.2f} ms   Caller {self.ratio:4.2f}   "
            f"its transport alone {self.transport / self.bare:4.2f}"
        )


class _Counter:
    """The cheapest observer."""

    seen = 0

    def attempt_ended(self, attempt: Attempt) -> None:
        self.seen += 1


def measure(rounds: int = ROUNDS) -> Overhead:
    """Send as many requests of each kind, in turn."""
    counter = _Counter()
    with (
        quick_server() as url,
        httpx2.Client(trust_env=False) as client,
        Caller(Httpx2Transport(), "gateway", observers=[counter]) as caller,
    ):
        url += "/v1/charges"
        content = {"content-type": "application/json"}

        def bare() -> httpx2.Response:
            headers = {**content, "idempotency-key": str(uuid.uuid4())}
            return client.post(url, content=json.dumps(ORDER).encode(), headers=headers)

        def called() -> httpx2.Response:
            request = Request("POST", url, content, json.dumps(ORDER).encode())
            return caller.call(request, operation="charge")

        def sent() -> httpx2.Response:
            headers = {**content, "idempotency-key": str(uuid.uuid4())}
            request = Request("POST", url, headers, json.dumps(ORDER).encode())
            return caller.transport.send(request, 5.0)

        overhead = Overhead(*_medians([bare, called, sent], rounds))
    if counter.seen < rounds:
        raise AssertionError("the observer was not told of every attempt")
    return overhead


def _medians(kinds: list[Callable[[], httpx2.Response]], rounds: int) -> list[float]:
    times: list[list[int]] = [[] for _ in kinds]
    warmup = rounds // 10
    for index in range(rounds + warmup):
        # Forward and backward in turn: a request warms the caches for the next one.
        turn = list(zip(kinds, times, strict=True))
        for send, taken in turn if index % 2 else turn[::-1]:
            began = time.perf_counter_ns()
            response = send()
            ended = time.perf_counter_ns()
            if response.status_code != 201:
                raise AssertionError(f"the server answered {response.status_code}")
            if index >= warmup:
                taken.append(ended - began)
    return [statistics.median(taken) / 1e6 for taken in times]


def main() -> int:
    overhead = measure()
    print(overhead.line())
    return 0 if overhead.ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
