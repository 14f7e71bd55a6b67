"""Start what the product needs, cut its paths, and say what came of it."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
from pathlib import Path

import psycopg

from config import embedded
from tests.acceptance.product import Product, seed
from tests.plugins.gateway import GatewayProcess

ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "SECRET_KEY": "of the kill points",
    "DEMO": "1",
    "HTTPS": "0",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
    "LOG_FORMAT": "console",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill_points", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="kill only every N-th point")
    parser.add_argument("--path", default="", help="only the paths whose name contains this")
    options = parser.parse_args()
    with contextlib.ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kill-points-")))
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        os.environ |= ENVIRONMENT
        gateway = GatewayProcess(folder / "gateway.sqlite3")
        gateway.start()
        started.callback(gateway.close)
        os.environ["GATEWAY_URL"] = gateway.url
        if not os.environ.get("DATABASE_URL"):
            _start_servers(started, folder)
        return _run(folder, gateway, options.every, options.path)


def _start_servers(started: contextlib.ExitStack, folder: Path) -> None:
    postgres = started.enter_context(embedded.Postgres(folder / "postgres", durable=False))
    valkey = started.enter_context(embedded.Valkey(folder / "valkey", durable=False))
    os.environ |= {"REDIS_URL": valkey.url, "DATABASE_URL": postgres.url}
    os.environ["DATABASE_URL"] = seed(postgres.url, folder).url


def _run(folder: Path, gateway: GatewayProcess, every: int, named: str) -> int:
    import django

    django.setup()
    # What is cut off has a lot to say, and none of it is news.
    logging.disable(logging.CRITICAL)
    from tests.kill_points import run
    from tests.kill_points.paths import Bench

    database = os.environ["DATABASE_URL"]
    bench = Bench(Product(folder, database, _accounts(database), gateway))
    reports = []
    with run.receiver(bench) as receiver:
        run.warm(bench, receiver)
        for path in run.PATHS:
            if named in path.name:
                reports.append(run.run(path(bench), every))
                print(reports[-1], *reports[-1].problems, sep="\n  ", flush=True)
    points, killed = (sum(getattr(one, name) for one in reports) for name in ("points", "killed"))
    problems = sum(len(report.problems) for report in reports)
    print(f"{points} points, {killed} killed, {killed - problems} recovered")
    return 1 if problems or not killed else 0


def _accounts(database: str) -> dict[str, str]:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT lower(name), public_id FROM payments_merchant")
        return dict(found.fetchall())


if __name__ == "__main__":
    sys.exit(main())
