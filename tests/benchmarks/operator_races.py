"""Operators against live owners, again and again: there must never be two truths.

    python -m tests.benchmarks.operator_races [ROUNDS]

Each race of ``operator_rounds`` is run so many times over a PostgreSQL and a gateway of its own. In
each round the two, or more, meet right before they write; afterwards our ledger, the gateway's, the
key, its story and the retry must tell the same. Ends with 1 when one of them does not.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import embedded

if TYPE_CHECKING:
    from tests.benchmarks.operator_rounds import Report, Stage

ROUNDS = 200


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        with embedded.Postgres(folder / "postgres", durable=False) as postgres:
            os.environ |= {
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "DATABASE_URL": postgres.url,
                # Without Redis, which only DEBUG allows.
                "REDIS_URL": "",
                "DEBUG": "1",
                "SECRET_KEY": "of the benchmark",
                "GATEWAY_URL": "http://127.0.0.1:9000",
                "HTTPS": "0",
                "ALLOWED_HOSTS": "testserver",
            }
            return _run(folder, rounds)


def races() -> dict[str, Any]:
    """Each race by its name. Django must be set up."""
    from tests.benchmarks import operator_resends, operator_rounds

    return {
        "settle": operator_rounds.race_to_settle,
        "force-fail": operator_rounds.race_to_force_fail,
        "settle beside the job": operator_rounds.race_with_the_job,
        "approve": operator_rounds.race_to_approve,
        "re-send": operator_resends.race_to_resend,
    }


def run(name: str, stage: Stage, rounds: int) -> Report:
    """Play one race so many times."""
    from tests.benchmarks.operator_rounds import play

    return play(name, races()[name], stage, rounds)


def _run(folder: Path, rounds: int) -> int:
    import django
    from django.core.management import call_command

    django.setup()
    logging.disable(logging.CRITICAL)  # each round refuses somebody, which is logged
    call_command("migrate", verbosity=0)
    from tests.benchmarks.operator_rounds import Stage
    from tests.plugins.gateway import GatewayProcess

    gateway = GatewayProcess(folder / "gateway.sqlite3")
    gateway.start()
    try:
        wrong = []
        for name in races():
            began = time.monotonic()
            report = run(name, Stage.build(gateway), rounds)
            print(f"{report}; {time.monotonic() - began:.0f} s", flush=True)
            wrong += report.wrong
    finally:
        gateway.close()
    print(*wrong[:20], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
