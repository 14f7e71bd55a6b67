"""``make bench``: ratios measured side by side in one run, on a durable PostgreSQL of its own."""

from __future__ import annotations

import sys

from tests.benchmarks import servers

ROUNDS = 2000
#: Each has a command of its own (tests/README.md).
LONGER = (
    "bulkhead",
    "day_drop",
    "engine",
    "large_table",
    "memory",
    "operator_races",
    "outage",
    "outbox_crashes",
    "overhead_variants",
    "simulation",
    "table_sizes",
    "wake_up",
    "webhooks",
)


def main() -> int:
    with servers.started():
        return run()


def run() -> int:
    from tests.benchmarks import client_breaker, client_overhead, overhead

    print(f"p50 ratios to the bare request, {ROUNDS} rounds, interleaved")
    print(overhead.one_insert(ROUNDS).line("view with one INSERT"))
    print(overhead.one_insert(ROUNDS, by_hand=True).line("the same by hand"))
    print(overhead.transfer(ROUNDS).line("transfer"))
    print(client_overhead.measure(ROUNDS).line())
    calls = f"{client_breaker.CALLS} calls at once over as many bare ones"
    print(f"{'client breaker':<22} {calls} {client_breaker.ratio():4.2f}")
    print("python -m tests.benchmarks.NAME takes minutes:", *LONGER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
