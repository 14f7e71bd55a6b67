"""What the protection costs on each database, with Valkey and without.

    python -m tests.benchmarks.overhead_variants [--rounds 1000] [--results FOLDER]

Each variant runs in a process of its own: ``overhead``'s view with one INSERT and the product's
transfer, bare and protected, interleaved. PostgreSQL is durable, and SQLite flushes at each commit
(``synchronous=FULL``), as the product's settings have it; the ledger of the transfer needs
PostgreSQL. *waiting* is a fresh request on a view
that holds its duplicates (``busy = "wait"``): with Valkey it announces its end, so this is what
Valkey costs those that nobody waits for. How long a duplicate waits is in ``wake_up``.

Exit code 1 when PostgreSQL with Valkey, the product's own setting, is above one of the bounds: of
the view with one INSERT 1.6 for fresh, 0.5 for replay and busy; of the transfer 1.35 and 0.35.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks import figures

#: p50 over that of the bare request, at most.
MOST = {
    "insert": {"fresh": 1.6, "replay": 0.5, "busy": 0.5},
    "transfer": {"fresh": 1.35, "replay": 0.35},
}
BOUND = "PostgreSQL, Valkey"
VARIANTS = (BOUND, "PostgreSQL alone", "SQLite, Valkey", "SQLite alone")


def main() -> int:
    parser = figures.parser("overhead_variants")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(_measure(options.variant, options.rounds)))
        return 0
    report = figures.Report("overhead_variants")
    for variant in VARIANTS:
        found = _in_a_process(variant, options.rounds)
        report.details[variant] = found
        for view, ratios in found.items():
            most = MOST[view] if variant == BOUND else {}
            _add(report, f"{variant}: {view}", ratios, most)
    return report.end(options.results)


def _add(
    report: figures.Report, name: str, ratios: dict[str, float], most: dict[str, float]
) -> None:
    report.add(f"{name}, bare, p50", ratios["bare_ms"], "ms")
    for kind in ("fresh", "replay", "busy", "waiting"):
        if kind in ratios:
            bounds = {"most": most[kind]} if kind in most else {}
            report.add(f"{name}, {kind} over bare", ratios[kind], **bounds)


def _in_a_process(variant: str, rounds: int) -> dict[str, dict[str, float]]:
    """Django reads its settings once, so each variant needs a process."""
    command = [sys.executable, "-m", "tests.benchmarks.overhead_variants"]
    command += ["--variant", variant, "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def _measure(variant: str, rounds: int) -> dict[str, Any]:
    from tests.benchmarks import servers

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sqlite = f"sqlite:///{Path(folder)}/database.sqlite3"
        changes = {"DATABASE_URL": sqlite} if variant.startswith("SQLite") else {}
        with servers.started(**changes), _library(alone=variant.endswith("alone")):
            from tests.benchmarks import overhead

            insert = asdict(overhead.one_insert(rounds))
            insert["waiting"] = overhead.waiting(rounds)
            found = {"insert": insert}
            if variant.startswith("PostgreSQL"):
                found["transfer"] = asdict(overhead.transfer(rounds))
            return found


@contextmanager
def _library(*, alone: bool) -> Iterator[None]:
    """The library with the product's Valkey, or with none."""
    from django.conf import settings
    from django.test import override_settings

    changes = {"REDIS_URL": None} if alone else {}
    with override_settings(IDEMPOTENCY=settings.IDEMPOTENCY | changes):
        yield


if __name__ == "__main__":
    sys.exit(main())
