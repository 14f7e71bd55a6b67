"""Fifty calls at once through a closed breaker against fifty bare ones, interleaved in one run.

    python -m tests.benchmarks.client_breaker

A breaker that holds its lock during a call would make the ratio 50.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from idempotency.client import CircuitBreaker, Outcome

CALLS = 50
SECONDS = 0.1
ROUNDS = 15
LIMIT = 1.1


def ratio() -> float:
    """The median time of a batch through the breaker over that of a bare batch."""
    breaker = CircuitBreaker()

    def bare(_: int) -> None:
        time.sleep(SECONDS)

    def guarded(_: int) -> None:
        admission = breaker.admit()
        time.sleep(SECONDS)
        breaker.settle(admission, Outcome.SUCCESS)

    with ThreadPoolExecutor(CALLS) as pool:
        _batch(pool, bare)  # starts the threads
        rounds = [(_batch(pool, bare), _batch(pool, guarded)) for _ in range(ROUNDS)]
    bare_times, guarded_times = zip(*rounds, strict=True)
    return statistics.median(guarded_times) / statistics.median(bare_times)


def overhead(times: int = 20_000) -> float:
    """Microseconds that one admission and its settlement take, without contention."""
    breaker = CircuitBreaker()
    began = time.perf_counter()
    for _ in range(times):
        breaker.settle(breaker.admit(), Outcome.SUCCESS)
    return (time.perf_counter() - began) / times * 1e6


def _batch(pool: ThreadPoolExecutor, call: Callable[[int], None]) -> float:
    began = time.perf_counter()
    list(pool.map(call, range(CALLS)))
    return time.perf_counter() - began


def main() -> int:
    measured = ratio()
    print(f"{CALLS} calls of {SECONDS * 1000:.0f} ms at once, through a closed breaker over bare:")
    print(f"ratio {measured:.3f} (at most {LIMIT}); {overhead():.1f} us a call, uncontended")
    return 0 if measured <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
