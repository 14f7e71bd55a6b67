"""A day of ten million responses, deleted by SQL and dropped by the job, while clients claim.

    python -m tests.benchmarks.day_drop [--responses 10000000] [--days 8] [--data FOLDER]
                                        [--results FOLDER]

Eight clients claim new keys as fast as they can. Meanwhile one DELETE empties an old day, which is
rolled back, and then the product's own job (``drop_expired_partitions``) drops the same day. Before
each the day is put out of the system's cache, as a day of a month ago would be.

The DELETE is compared with what the job does in its place: DETACH CONCURRENTLY, DROP and COMMIT.
The whole job, which also plans and looks twice for keys that need the day, is told too.

One drop is too short for a p99 of its own, so smaller days of a twentieth each are dropped too,
each after a quiet window. The p99 while dropping is that of all claims that began between the start
and the end of a job; the quiet p99 is that of the windows before them.

Exit code 1 when the drop is less than 100 times as fast, or its p99 is above 1.3 times the quiet
one. Needs about 12 GB of disk for ten million; filling takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks import clients, figures, servers

LEAST_FASTER, MOST_P99 = 100, 1.3
#: Seconds of a quiet window.
QUIET = 3.0
#: How old the oldest day is; each later one is a day younger.
OLDEST = 100
FILL = """
INSERT INTO {table} (day, key_id, tenant, status, headers, body)
SELECT '{day}', i, 'acct_1', 201,
    '[["Content-Type", "application/json"], ["Location", "/v1/charges/ch_1"]]',
    convert_to(rpad('{{"id":"ch_' || i || '","amount":4200,"currency":"EUR",', 200), 'UTF8')
FROM generate_series(1, {rows}) AS i
"""


@dataclass
class Window:
    """Between two moments, in nanoseconds of the monotonic clock."""

    began: int = field(default_factory=time.monotonic_ns)
    ended: int = 0

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = time.monotonic_ns()

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9

    def of(self, times: clients.Times) -> list[float]:
        """Milliseconds of what began in it."""
        return [took / 1e6 for began, took in times if self.began <= began < self.ended]


def main() -> int:
    parser = figures.parser("day_drop")
    parser.add_argument("--responses", type=int, default=10_000_000, help="of the large day")
    parser.add_argument("--days", type=int, default=8, help="smaller days, of a twentieth each")
    parser.add_argument("--data", type=Path, help="a folder with room for the tables")
    options = parser.parse_args()
    with servers.started(options.data) as postgres:
        return _run(options, postgres.data)


def _run(options: argparse.Namespace, data: Path) -> int:
    from django.db import connections

    connections.close_all()  # before the fork
    claiming = clients.Clients(claims)
    sizes = [options.responses] + [options.responses // 20] * options.days
    days = [_today() - timedelta(days=OLDEST - number) for number in range(len(sizes))]
    with Window() as filling:
        for day, size in zip(days, sizes, strict=True):
            _fill(day, size)
    print(f"filled {sum(sizes):,} responses in {filling.seconds:.0f} s", flush=True)
    claiming.run(QUIET)
    _forget(data)
    deleted = _timed(claiming, days[:1], _delete)
    _execute(f"VACUUM {_step(days[0]).table}")
    _forget(data)
    dropped = _timed(claiming, days, _drop)
    return _report(deleted, dropped, options.responses).end(options.results)


@dataclass
class Timed:
    """Claims, and the windows in which something was done to days, or nothing."""

    times: clients.Times
    quiet: list[Window]
    at_work: list[Window]
    #: Of each window at work, the seconds of its DETACH and DROP, or of its DELETE.
    writing: list[float]

    def p99(self, windows: list[Window]) -> float:
        found = [took for window in windows for took in window.of(self.times)]
        return figures.percentile(found, 99)

    def claims(self, windows: list[Window]) -> int:
        return sum(len(window.of(self.times)) for window in windows)


def _timed(claiming: clients.Clients, days: list[date], act: Any) -> Timed:
    quiet, at_work, writing = [], [], []
    claiming.begin()
    for day in days:
        with Window() as window:
            time.sleep(QUIET)
        quiet.append(window)
        with Window() as window, _steps() as steps:
            act(day)
        at_work.append(window)
        writing.append(_writing(steps))
    return Timed(claiming.end(), quiet, at_work, writing)


@contextmanager
def _steps() -> Iterator[list[tuple[str, float]]]:
    """The statements of this process, each with the seconds until the next one: so a COMMIT, which
    is no statement to Django, counts to the one before it."""
    from django.db import connection

    begun: list[tuple[str, float]] = []
    steps: list[tuple[str, float]] = []

    def noted(execute: Any, sql: str, *arguments: Any) -> Any:
        begun.append((sql, time.perf_counter()))
        return execute(sql, *arguments)

    with connection.execute_wrapper(noted):
        yield steps
    begun.append(("", time.perf_counter()))
    steps += [(sql, after - before) for (sql, before), (_, after) in pairwise(begun)]


def _writing(steps: list[tuple[str, float]]) -> float:
    return sum(took for sql, took in steps if sql.startswith(("ALTER", "DROP", "DELETE")))


def _report(deleted: Timed, dropped: Timed, responses: int) -> figures.Report:
    report = figures.Report("day_drop")
    drop, delete = dropped.writing[0], deleted.writing[0]
    report.add(f"DELETE of {responses:,} responses", delete, "s")
    report.add("DETACH, DROP and COMMIT of the same", drop, "s")
    report.add("the whole job", dropped.at_work[0].seconds, "s")
    report.add("times as fast", delete / drop, least=LEAST_FASTER)
    quiet, at_work = dropped.p99(dropped.quiet), dropped.p99(dropped.at_work)
    report.add("claim, p99, quiet", quiet, "ms")
    report.add("claim, p99, while days are dropped", at_work, "ms")
    report.add("of them while the large day is dropped", dropped.p99(dropped.at_work[:1]), "ms")
    report.add("p99 while dropping over quiet", at_work / quiet, most=MOST_P99)
    report.add("claim, p99, during the DELETE", deleted.p99(deleted.at_work), "ms")
    report.details = {
        "claims": {
            "quiet": dropped.claims(dropped.quiet),
            "while dropping": dropped.claims(dropped.at_work),
            "during the DELETE": deleted.claims(deleted.at_work),
        },
        "seconds of each job": [window.seconds for window in dropped.at_work],
        "of them DETACH, DROP and COMMIT": dropped.writing,
    }
    return report


def claims() -> Iterator[None]:
    """A claim of a new key for each step."""
    from idempotency.core.decisions import Claim, Won
    from idempotency.core.keys import Scope
    from idempotency.stores import get_store

    store = get_store()
    while True:
        scope = Scope("POST /v1/bench", "acct_1", str(uuid.uuid4()))
        claim = Claim(scope, bytes(32), 1, uuid.uuid4(), timedelta(seconds=30))
        assert isinstance(store.claim(claim), Won)
        yield


def _step(day: date) -> Any:
    from idempotency.partitions import RESPONSES, Action, Step

    return Step(Action.CREATE, RESPONSES, day)


def _fill(day: date, rows: int) -> None:
    from idempotency.partitions import apply

    step = _step(day)
    assert not any(outcome.problem for outcome in apply("default", [step]))
    # The statement timeout of the settings is for requests.
    _execute("SET statement_timeout = 0")
    _execute(FILL.format(table=step.table, day=day, rows=rows))
    # What autovacuum would have done by now.
    _execute(f"VACUUM (ANALYZE) {step.table}")


def _forget(data: Path) -> None:
    """Write everything to the disk, and put it out of the system's cache."""
    _execute("CHECKPOINT")
    for path in data.glob("base/*/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _delete(day: date) -> None:
    from django.db import transaction

    with transaction.atomic():
        _execute("DELETE FROM idempotency_storedresponse WHERE day = %s", [day])
        transaction.set_rollback(True)


def _drop(day: date) -> None:
    """Run the job when this day, and none after it, is old enough."""
    from django.conf import settings
    from django.test import override_settings

    from idempotency import maintenance

    retention = timedelta(days=(_today() - day).days - 1)
    with override_settings(IDEMPOTENCY=settings.IDEMPOTENCY | {"RETENTION": retention}):
        result = maintenance.drop_expired_partitions()
    assert (result.done, result.failed) == (1, 0), result


def _today() -> date:
    return datetime.now(UTC).date()


def _execute(statement: str, values: list[date] | None = None) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, values)


if __name__ == "__main__":
    sys.exit(main())
