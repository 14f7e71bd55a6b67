"""Dispatchers are killed at every step of their way, two at a time, again and again.

    python -m tests.benchmarks.outbox_crashes [KILLS]

Messages of two aggregates and of none go to a receiver with an inbox. Whatever was killed, in the
end each message has arrived, has had its effect once, and in the order of its aggregate.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from config import embedded
from config.stack import ROOT
from tests.acceptance.product import seed

KILLS = 200
#: Claimed and not sent; sent and the answer not yet kept; marked and not committed; committed.
POINTS = ("claimed", "sent", "marking", "settled")
SIGKILLED = -9
MODULE = "tests.benchmarks.outbox_processes"

_TABLES = """
CREATE TABLE crash_arrival (id bigserial PRIMARY KEY, message_id text NOT NULL);
CREATE TABLE crash_effect (id bigserial PRIMARY KEY, message_id text NOT NULL,
                           aggregate text NOT NULL, number int NOT NULL);
"""


@dataclass(frozen=True)
class Report:
    """What was done, and what came of it."""

    kills: Counter[str]
    messages: int
    arrivals: int
    #: Messages that never arrived; that had no effect or more than one; aggregates out of order.
    missing: int
    not_once: int
    out_of_order: list[str]
    #: Messages that are not delivered, and messages of work that rolled back.
    unfinished: int
    never_written: int

    @property
    def good(self) -> bool:
        wrong = (self.missing, self.not_once, self.unfinished, self.never_written)
        return not any(wrong) and not self.out_of_order

    def __str__(self) -> str:
        kills = ", ".join(f"{point} {count}" for point, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kills}); {self.messages} messages, {self.arrivals} "
            f"arrivals; missing {self.missing}, not once {self.not_once}, "
            f"out of order {len(self.out_of_order)}, unfinished {self.unfinished}, "
            f"of work that rolled back {self.never_written}"
        )


class Process:
    """A process of ``outbox_processes``, which is told lines and answers with lines."""

    def __init__(self, database: str, log: Path, *arguments: str) -> None:
        # Without Redis, which only DEBUG allows.
        env = os.environ | {"DATABASE_URL": database, "REDIS_URL": "", "DEBUG": "1"}
        env["SECRET_KEY"] = "of crashes"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"it ended; {self._log} ends:\n{embedded.tail(self._log)}"
        return line

    def tell(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self.line().split()

    def close(self) -> None:
        with self._process:  # closes its pipes
            self._process.kill()


@contextlib.contextmanager
def processes(database: str, folder: Path) -> Iterator[Process]:
    """The receiver and the parent of dispatchers; gives the latter."""
    with contextlib.ExitStack() as running:
        receiver = Process(database, folder / "receiver.log", "receiver")
        running.callback(receiver.close)
        url = f"http://127.0.0.1:{receiver.line()}"
        dispatchers = Process(database, folder / "dispatchers.log", "dispatchers", url)
        running.callback(dispatchers.close)
        assert dispatchers.line() == "ready"
        yield dispatchers


def crash(database: str, folder: Path, kills: int, seed: int = 1) -> Report:
    """Kill so many dispatchers over a migrated PostgreSQL database, then let one finish."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES)
    rng, points, killed = random.Random(seed), itertools.cycle(POINTS), Counter[str]()
    with processes(database, folder) as dispatchers:
        for number in range((kills + 1) // 2):
            dispatchers.tell(f"write {number}")
            pair = [next(points), next(points)]
            told = " ".join(f"{point}:{rng.randint(1, 3)}" for point in pair)
            ended = dispatchers.tell(f"crash {told}")
            assert ended == [str(SIGKILLED)] * 2, ended
            killed.update(pair)
        assert dispatchers.tell("drain") == ["0"]
    return report(database, killed)


def report(database: str, killed: Counter[str]) -> Report:
    def rows(query: str) -> list[tuple[str, ...]]:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]

    with psycopg.connect(database, autocommit=True) as connection:
        sent = {
            message: (state, destination)
            for message, state, destination in rows(
                "SELECT message_id::text, state, destination FROM idempotency_outboxmessage "
                "WHERE channel = 'crash'"
            )
        }
        arrivals = [row[0] for row in rows("SELECT message_id FROM crash_arrival")]
        effects = rows("SELECT message_id, aggregate, number FROM crash_effect ORDER BY id")
    acted = Counter(message for message, _, _ in effects)
    orders: dict[str, list[str]] = {}
    for _, aggregate, number in effects:
        orders.setdefault(aggregate, []).append(number)
    return Report(
        kills=killed,
        messages=len(sent),
        arrivals=len(arrivals),
        missing=len(sent.keys() - set(arrivals)),
        not_once=sum(acted[message] != 1 for message in sent),
        out_of_order=[name for name, order in orders.items() if name and order != sorted(order)],
        unfinished=sum(state != "delivered" for state, _ in sent.values()),
        never_written=sum(destination == "" for _, destination in sent.values()),
    )


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        with embedded.Postgres(folder / "postgres", durable=False) as postgres:
            os.environ |= {"DEMO": "1", "SECRET_KEY": "of the benchmark", "HTTPS": "0"}
            os.environ |= {"ALLOWED_HOSTS": "localhost", "DATABASE_URL": postgres.url}
            os.environ |= {"GATEWAY_URL": "http://127.0.0.1:9000", "DEBUG": "1"}
            began = time.monotonic()
            found = crash(seed(postgres.url, folder).url, folder, kills)
    print(f"{found}; {time.monotonic() - began:.0f} s")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
