"""What the number of keys does to a claim.

    python -m tests.benchmarks.table_sizes [--keys 10000,100000,1000000,10000000] [--claims 4000]
                                           [--data FOLDER] [--results FOLDER]

One durable server with default settings has a database for each number of keys; claims of new keys
go to them in turn, so that a slow moment of the machine hits all alike. Client and sessions share
one processor, where the system can be told so. Left alone it keeps one session beside the client
and wakes the other on a processor that sleeps, which costs 0.03 ms and has nothing to do with the
table. Ten million take some minutes to fill; with --data they stay there for the next run. Each
table is read into the system's cache first, as one in use would be: kernels that reclaim cold pages
by themselves (DAMON) leave a tenth of it within minutes, and a claim then waits for the disk. Exit
code 1 when the p50 of the largest is above 1.2 times that of the smallest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

from tests.benchmarks import figures, servers

MOST = 1.2
ROUTE, TENANT = "POST /v1/bench", "acct_1"
#: Filled without its unique index: ten million random places in it would take longer than all the
#: rest.
FILL = """
ALTER TABLE idempotency_idempotencykey DROP CONSTRAINT idempotency_idempotencykey_digest_key;
INSERT INTO idempotency_idempotencykey (
    digest, key, route, tenant, fingerprint, fingerprint_version, state, owner, attempt, resumes,
    recovery_point, failure, created_at, completed_at, expires_at, response_day
)
SELECT sha256(int8send(i)), md5(i::text)::uuid::text, 'POST /v1/bench', 'acct_1',
    sha256(int8send(i)), 1, 'succeeded', gen_random_uuid(), 1, 0, '', '', now(), now(),
    now() + interval '1 day', now()::date
FROM generate_series(1, {keys}) AS i;
ALTER TABLE idempotency_idempotencykey
    ADD CONSTRAINT idempotency_idempotencykey_digest_key UNIQUE (digest);
VACUUM ANALYZE idempotency_idempotencykey;
CHECKPOINT
"""


def main() -> int:
    parser = figures.parser("table_sizes")
    parser.add_argument("--keys", default="10000,100000,1000000,10000000", help="smallest first")
    parser.add_argument("--claims", type=int, default=4000, help="of each table")
    parser.add_argument("--data", type=Path, help="keep the tables here for the next run")
    options = parser.parse_args()
    with servers.started(data=options.data):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    sizes = [int(size) for size in options.keys.split(",")]
    for size in sizes:
        _fill(size)
    for size in sizes:
        _warm(size)
    times = _claim(sizes, options.claims)
    report = figures.Report("table_sizes")
    p50 = {size: statistics.median(times[size]) for size in sizes}
    for size in sizes:
        report.add(f"claim among {size:,} keys, p50", p50[size], "ms")
        report.add(f"claim among {size:,} keys, p99", figures.percentile(times[size], 99), "ms")
    few, many = sizes[0], sizes[-1]
    report.add(f"p50 at {many:,} over {few:,}", p50[many] / p50[few], most=MOST)
    report.details["p50"] = p50
    options.results.mkdir(parents=True, exist_ok=True)
    _draw(p50, options.results / "table_sizes.png")
    return report.end(options.results)


def _alias(size: int) -> str:
    return f"keys_{size}"


def _fill(size: int) -> None:
    """The table of so many keys, unless it is there from an earlier run."""
    from django.core.management import call_command
    from django.db import connection, connections

    name = _alias(size)
    connections.settings[name] = connection.settings_dict | {"NAME": name}
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [name])
        if cursor.fetchone() is not None:
            return
        cursor.execute(f"CREATE DATABASE {name}_filling")
    connections.settings[name]["NAME"] = f"{name}_filling"
    call_command("migrate", database=name, verbosity=0)
    began = time.perf_counter()
    with connections[name].cursor() as cursor:
        # The statement timeout of the settings is for requests.
        cursor.execute("SET statement_timeout = 0; SET maintenance_work_mem = '1GB'")
        for statement in FILL.format(keys=size).split(";\n"):
            cursor.execute(statement)
    print(f"filled {size:,} keys in {time.perf_counter() - began:.0f} s", flush=True)
    connections[name].close()
    with connection.cursor() as cursor:
        # Its name says that it is whole.
        cursor.execute(f"ALTER DATABASE {name}_filling RENAME TO {name}")
    del connections[name]
    connections.settings[name]["NAME"] = name


def _warm(size: int) -> None:
    """Read the table and its indexes into the operating system's cache."""
    from django.db import connections

    with connections[_alias(size)].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
        cursor.execute(
            "SELECT pg_prewarm(relation, 'read') FROM ("
            " SELECT 'idempotency_idempotencykey'::regclass UNION ALL"
            " SELECT indexrelid FROM pg_index"
            " WHERE indrelid = 'idempotency_idempotencykey'::regclass) AS read (relation)"
        )
    connections[_alias(size)].close()


def _claim(sizes: list[int], number: int) -> dict[int, list[float]]:
    """Milliseconds of claims of new keys, by the size of the table."""
    from idempotency.core.decisions import Claim, Won
    from idempotency.core.keys import Scope
    from idempotency.stores import get_store

    _share_a_processor(sizes)
    stores = {size: get_store(_alias(size)) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for index in range(number + number // 10):
        for size, store in stores.items():
            scope = Scope(ROUTE, TENANT, str(uuid.uuid4()))
            claim = Claim(scope, bytes(32), 1, uuid.uuid4(), timedelta(seconds=30))
            began = time.perf_counter_ns()
            decision = store.claim(claim)
            took = time.perf_counter_ns() - began
            assert isinstance(decision, Won)
            if index >= number // 10:
                times[size].append(took / 1e6)
    return times


def _share_a_processor(sizes: list[int]) -> None:
    from django.db import connections

    if not hasattr(os, "sched_setaffinity"):
        return  # not Linux
    one = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, one)
    for size in sizes:
        connections[_alias(size)].ensure_connection()
        os.sched_setaffinity(connections[_alias(size)].connection.info.backend_pid, one)


def _draw(p50: dict[int, float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(p50), list(p50.values()), marker="o")
    axes.set(xscale="log", xlabel="keys in the table", ylabel="claim of a new key, p50 in ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
