"""How soon after the commit a waiting duplicate has its answer, with Valkey and without.

    python -m tests.benchmarks.wake_up [--rounds 150] [--results FOLDER]

Two processes with an engine each, on one durable PostgreSQL. In each round the first runs a request
under a new key, and the second sends the same meanwhile under ``busy = "wait"``. The clock starts
when the first one's COMMIT has returned (an ``on_commit`` hook of its work), and stops when the
second one's ``Engine.run`` returns the replay; both read the system's one monotonic clock. The work
takes 0.1 to 0.6 seconds, drawn anew in each round, so that its end falls anywhere between two
looks. Rounds with Valkey and without alternate.

Exit code 1 when the p95 with Valkey is above 20 ms, or without above 150 ms.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks import figures, servers

MOST = {"with Valkey": 20, "without": 150}
SHORTEST, LONGEST = 0.1, 0.6
PATIENCE = 30.0


def main() -> int:
    parser = figures.parser("wake_up")
    parser.add_argument("--rounds", type=int, default=150, help="of each")
    options = parser.parse_args()
    with servers.started():
        report = figures.Report("wake_up")
        for name, times in _measure(options.rounds).items():
            report.add(f"{name}, p50", statistics.median(times), "ms")
            report.add(f"{name}, p95", figures.percentile(times, 95), "ms", most=MOST[name])
            report.add(f"{name}, longest", max(times), "ms")
            report.details[name] = times
        return report.end(options.results)


def _measure(rounds: int) -> dict[str, list[float]]:
    """Milliseconds from the commit to the duplicate's answer."""
    from django.db import connections

    connections.close_all()  # before the fork
    first, second = _process(_first), _process(_second)
    times: dict[str, list[float]] = {name: [] for name in MOST}
    for number in range(rounds + 5):
        for name in times:
            key, takes = str(uuid.uuid4()), random.uniform(SHORTEST, LONGEST)
            first.send((name, key, takes))
            _receive(first)  # it has claimed
            second.send((name, key, takes))
            answered, committed = _receive(second), _receive(first)
            if number >= 5:
                times[name].append((answered - committed) / 1e6)
    return times


def _process(serve: Callable[[Connection], None]) -> Connection:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs,), daemon=True).start()
    return ours


def _receive(pipe: Connection) -> int:
    if not pipe.poll(PATIENCE):
        raise AssertionError("a process is stuck")
    moment: int = pipe.recv()
    return moment


def _first(pipe: Connection) -> None:
    """Run each request that is named; tell when it was claimed and when it was committed."""
    from django.db import transaction

    engines = _engines()
    while True:
        name, key, takes = pipe.recv()
        committed: list[int] = []

        def handle(committed: list[int] = committed, takes: float = takes) -> None:
            transaction.on_commit(lambda: committed.append(time.monotonic_ns()))
            pipe.send(time.monotonic_ns())
            time.sleep(takes)

        engines[name].run(_request(key), _Work(handle))
        pipe.send(committed[0])


def _second(pipe: Connection) -> None:
    """Send each request that is named again, and tell when its answer was there."""
    from idempotency.engine import Answer

    engines = _engines()
    while True:
        name, key, _ = pipe.recv()
        answer = engines[name].run(_request(key), _Work(_never))
        answered = time.monotonic_ns()
        assert isinstance(answer, Answer)
        assert answer.replayed
        pipe.send(answered)


def _engines() -> dict[str, Any]:
    from idempotency.engine import Engine
    from idempotency.waiting import Waiter

    return {"with Valkey": Engine(), "without": Engine(waiter=Waiter(None))}


def _request(key: str) -> Any:
    from idempotency.core.keys import Scope
    from idempotency.engine import KeyedRequest
    from idempotency.http.requests import build_policy

    policy = build_policy({"busy": "wait", "wait": 5})
    return KeyedRequest(Scope("POST /v1/bench", "acct_1", key), policy, lambda version: bytes(32))


def _never() -> None:
    raise AssertionError("a duplicate ran")


class _Work:
    """A handler that does what it is given, and always answers the same."""

    def __init__(self, handle: Callable[[], None]) -> None:
        self._handle = handle

    def handle(self, execution: object) -> Any:
        from idempotency.core.responses import RecordedResponse
        from idempotency.engine import Handled

        self._handle()
        return Handled("done", RecordedResponse(201, (), b"{}"))

    def prepare(self, operation: object) -> dict[str, object]:
        raise NotImplementedError

    def verdict_of(self, error: Exception) -> Any:
        raise error


if __name__ == "__main__":
    sys.exit(main())
