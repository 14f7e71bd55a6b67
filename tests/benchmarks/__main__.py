"""``make bench``: ratios measured side by side in one run, on a durable PostgreSQL of its own."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from config import embedded

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
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL, run as nobody, walks it
        with (
            embedded.Postgres(Path(folder) / "postgres", durable=True) as postgres,
            embedded.Valkey(Path(folder) / "valkey", durable=False) as valkey,
        ):
            os.environ |= {
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "DATABASE_URL": postgres.url,
                "REDIS_URL": valkey.url,
                "SECRET_KEY": "of the benchmark",
                "GATEWAY_URL": "http://127.0.0.1:9000",
                "HTTPS": "0",
                "ALLOWED_HOSTS": "testserver",
            }
            return run()


def run() -> int:
    import django
    from django.core.management import call_command

    django.setup()
    # A refusal is logged and a first answer is not: the handlers' speed is not what is measured.
    logging.disable(logging.CRITICAL)
    call_command("migrate", verbosity=0)
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
