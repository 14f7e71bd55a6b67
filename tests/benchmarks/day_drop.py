"""A day of ten million responses, deleted by SQL and dropped by the job, while clients claim.

    python -m tests.benchmarks.day_drop [--responses 10000000] [--days 3] [--data FOLDER]
                                        [--results FOLDER]

Eight clients claim new keys, more than a thousand a second together, which leaves the processors
time for something else. Meanwhile one DELETE empties an old day and a VACUUM gives its space back;
then the product's own job (``drop_expired_partitions``) drops days of as many responses, one in
each run. Before, they are put out of the system's cache, as a day of a month ago would be.

Two things are compared. *Gone*: from the DELETE's start to its COMMIT, and from the job's DETACH
CONCURRENTLY until another session does not find the table any more. *Space back*: DELETE and VACUUM
together, and DETACH and DROP until the files are removed. The second is the file system's work,
done when no lock is held any more: with ext4's mount option ``discard`` it takes 0.15 s for each
gigabyte. The plan and the two looks for keys that need the day are in neither; the whole job is
told too. Of several drops the median counts.

The p99 while dropping is that of all claims that began between the start and the end of a job; the
quiet p99 is that of the windows before them. A job takes half a second, so one alone has too few
claims for a p99: hence several days.

Exit code 1 when either is less than 100 times as fast, or the p99 while dropping is above 1.3 times
the quiet one. Needs about 30 GB of disk for ten million; filling takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
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
#: Seconds between two claims of a client. Without any the processors have no time left, and what
#: would be seen is that the job has its share of them.
PAUSE = 0.005
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
    parser.add_argument("--responses", type=int, default=10_000_000, help="of each day")
    parser.add_argument("--days", type=int, default=3, help="to be dropped")
    parser.add_argument("--data", type=Path, help="a folder with room for the tables")
    options = parser.parse_args()
    with servers.started(options.data) as postgres:
        return _run(options, postgres.data)


def _run(options: argparse.Namespace, data: Path) -> int:
    from django.db import connections

    connections.close_all()  # before the fork
    claiming = clients.Clients(claims, pause=PAUSE)
    days = [_today() - timedelta(days=OLDEST - number) for number in range(1 + options.days)]
    with Window() as filling:
        for day in days:
            _fill(day, options.responses)
    print(f"filled {len(days)} days in {filling.seconds:.0f} s", flush=True)
    claiming.run(QUIET)
    _forget(data)
    deleted = _timed(claiming, days[:1], _delete)
    _drop(days[0])  # is empty, and would go with the next one
    _forget(data)
    dropped = _timed(claiming, days[1:], _drop)
    return _report(deleted, dropped, options.responses).end(options.results)


@dataclass
class Timed:
    """Claims, and the windows in which something was done to days, or nothing."""

    times: clients.Times
    quiet: list[Window]
    at_work: list[Window]
    #: What each act returned: the seconds of its parts.
    parts: list[dict[str, float]]

    def p99(self, windows: list[Window]) -> float:
        found = [took for window in windows for took in window.of(self.times)]
        return figures.percentile(found, 99)

    def median(self, part: str) -> float:
        return statistics.median(parts[part] for parts in self.parts)

    def claims(self, windows: list[Window]) -> int:
        return sum(len(window.of(self.times)) for window in windows)


def _timed(
    claiming: clients.Clients, days: list[date], act: Callable[[date], dict[str, float]]
) -> Timed:
    quiet, at_work, parts = [], [], []
    claiming.begin()
    for day in days:
        with Window() as window:
            time.sleep(QUIET)
        quiet.append(window)
        with Window() as window:
            parts.append(act(day))
        at_work.append(window)
    return Timed(claiming.end(), quiet, at_work, parts)


class Statements:
    """The statements of this process, each with the moments when it and the next one began: so a
    COMMIT, which is no statement to Django, belongs to the one before it."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, float]] = []

    def __call__(self, execute: Any, sql: str, *arguments: Any) -> Any:
        self._begun.append((sql, time.monotonic()))
        return execute(sql, *arguments)

    @contextmanager
    def noted(self) -> Iterator[None]:
        from django.db import connection

        with connection.execute_wrapper(self):
            yield
        self._begun.append(("", time.monotonic()))

    def find(self, word: str) -> tuple[float, float]:
        """From when to when a statement that begins so went on."""
        pairs = pairwise(self._begun)
        return next((one[1], other[1]) for one, other in pairs if one[0].startswith(word))


class Watcher:
    """Another session, which looks for a table every few milliseconds."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._thread = threading.Thread(target=self._look)
        self.gone = 0.0

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(clients.PATIENCE)

    def _look(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            there = True
            while there:
                time.sleep(0.003)
                cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [self._table])
                (there,) = cursor.fetchone()
            self.gone = time.monotonic()
        connection.close()


def _report(deleted: Timed, dropped: Timed, responses: int) -> figures.Report:
    report = figures.Report("day_drop")
    report.add(f"DELETE of {responses:,} responses", deleted.median("gone"), "s")
    report.add("DETACH and DROP of as many, until they are gone", dropped.median("gone"), "s")
    gone = deleted.median("gone") / dropped.median("gone")
    report.add("times as fast gone", gone, least=LEAST_FASTER)
    report.add("DELETE and VACUUM", deleted.median("removed"), "s")
    report.add("DETACH and DROP until the files are removed", dropped.median("removed"), "s")
    space = deleted.median("removed") / dropped.median("removed")
    report.add("times as fast with the space back", space, least=LEAST_FASTER)
    jobs = [window.seconds for window in dropped.at_work]
    report.add("the whole job", statistics.median(jobs), "s")
    quiet, at_work = dropped.p99(dropped.quiet), dropped.p99(dropped.at_work)
    report.add("claim, p99, quiet", quiet, "ms")
    report.add("claim, p99, while days are dropped", at_work, "ms")
    report.add("p99 while dropping over quiet", at_work / quiet, most=MOST_P99)
    report.add("claim, p99, during DELETE and VACUUM", deleted.p99(deleted.at_work), "ms")
    report.details = {
        "claims": {
            "quiet": dropped.claims(dropped.quiet),
            "while dropping": dropped.claims(dropped.at_work),
            "during the DELETE": deleted.claims(deleted.at_work),
        },
        "seconds of each job": jobs,
        "their parts": dropped.parts,
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
    # A job resets it to that of the settings, which is for requests.
    _execute("SET statement_timeout = 0")
    _execute("CHECKPOINT")
    for path in data.glob("base/*/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _delete(day: date) -> dict[str, float]:
    began = time.monotonic()
    _execute("DELETE FROM idempotency_storedresponse WHERE day = %s", [day])
    gone = time.monotonic()
    while _size(day):  # a claim that began before the COMMIT may hold the first one back
        _execute(f"VACUUM {_step(day).table}")
    return {"gone": gone - began, "removed": time.monotonic() - began}


def _size(day: date) -> int:
    """Bytes of its rows."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size(%s)", [_step(day).table])
        size: int = cursor.fetchone()[0]
    return size


def _drop(day: date) -> dict[str, float]:
    """Run the job when this day, and none after it, is old enough."""
    from django.conf import settings
    from django.test import override_settings

    from idempotency import maintenance

    retention = timedelta(days=(_today() - day).days - 1)
    statements, watcher = Statements(), Watcher(_step(day).table)
    with (
        override_settings(IDEMPOTENCY=settings.IDEMPOTENCY | {"RETENTION": retention}),
        watcher,
        statements.noted(),
    ):
        result = maintenance.drop_expired_partitions()
    assert (result.done, result.failed) == (1, 0), result
    began, detached = statements.find("ALTER TABLE")
    dropping, removed = statements.find("DROP TABLE")
    detach = detached - began
    return {"gone": detach + watcher.gone - dropping, "removed": detach + removed - dropping}


def _today() -> date:
    return datetime.now(UTC).date()


def _execute(statement: str, values: list[date] | None = None) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, values)


if __name__ == "__main__":
    sys.exit(main())
