"""The engine against pgbench: how much of the database's own rate is left of it?

    python -m tests.benchmarks.engine [--seconds 5] [--rounds 6] [--results FOLDER]

All send the same statements over eight connections to one durable PostgreSQL: the claim (committed
by itself), BEGIN, the work's INSERT, the completion and COMMIT. The engine's clients are two
processes with four threads, as the product's gunicorn has them; pgbench is one program of C with as
many connections. All share the machine's processors with the server, so what Python needs for a
request is taken from the server, as it is in production.

pgbench runs twice: "joined", in the three messages that the engine makes of the five statements,
and as it runs a script, each statement in a message of its own. The engine is held to the first,
which leaves it nothing that pgbench could have had too; the second is what a client gets who writes
the statements down.

The engine runs whole: new key, digest, claim, admission, signals, transaction, completion. Only
HTTP is left out, and the handler's ORM: its INSERT is one ``execute`` of a cursor that it keeps, as
psycopg's contender does. pgbench gets its keys for nothing: they are digits that it draws.

A last contender shows what of the difference is psycopg's: alone, in three messages, from as many
threads, with no engine and no Django.

Blocks alternate on one table, and each round gives ratios; the median of the ratios counts.
"""

from __future__ import annotations

import hashlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks import clients, figures, servers

if TYPE_CHECKING:
    from config.embedded import Postgres

CLIENTS = clients.PROCESSES * clients.THREADS
LEAST = 0.6
#: Stands for what a handler writes.
TABLE = "CREATE TABLE bench_work (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)"
ROUTE, TENANT = "POST /v1/bench", "acct_1"
FINGERPRINT = bytes(range(32))
HEADERS = '[["Content-Type", "application/json"], ["Location", "/v1/things/1"]]'
BODY = '{"id":"thing_1","object":"thing","amount":1000,"currency":"EUR","status":"succeeded"}'

#: The digest is made of decimal digits, which are hexadecimal too: 32 bytes, and random places in
#: its index.
SCRIPT = r"""
\set a random(1000000000000000000, 9000000000000000000)
\set b random(1000000000000000000, 9000000000000000000)
\set c random(1000000000000000000, 9000000000000000000)
\set d random(1000000, 9999999)
\set owner random(100000000000, 999999999999)
SELECT o_id AS key_id FROM idempotency_claim_v1('\x:a:b:c:d', ':a:b', '{route}', '{tenant}',
'\x{fingerprint}', 1::smallint, '00000000-0000-4000-8000-:owner', '30 s', true, NULL) \gset
BEGIN;
INSERT INTO bench_work (note) VALUES (':a');
SELECT idempotency_complete_v1(:key_id, '00000000-0000-4000-8000-:owner', 201::smallint,
'{headers}'::jsonb, '{body}', '1 day', NULL);
COMMIT;
"""

#: The same for psycopg.
CLAIM = "SELECT * FROM idempotency_claim_v1(%s, %s, %s, %s, %s, %s::smallint, %s, %s, %s, %s)"
COMPLETE_AND_COMMIT = (
    "SELECT idempotency_complete_v1(%s, %s, %s::smallint, %s::jsonb, %s, %s, %s); COMMIT"
)


def script() -> str:
    # Not str.format: JSON has braces of its own.
    values = {
        "{route}": ROUTE,
        "{tenant}": TENANT,
        "{fingerprint}": FINGERPRINT.hex(),
        "{headers}": HEADERS,
        "{body}": BODY,
    }
    text = SCRIPT
    for place, value in values.items():
        text = text.replace(place, value)
    return text


def joined(script: str) -> str:
    r"""The script in the engine's three messages: ``\;`` keeps two statements in one."""
    begun = script.replace("BEGIN;\n", "BEGIN\\; ")
    return begun.replace(";\nCOMMIT;", "\\; COMMIT;")


class Pgbench:
    """Runs a script in blocks."""

    def __init__(self, postgres: Postgres, file: Path, script: str, options: str) -> None:
        file.write_text(script)
        self._command = [
            servers.program("pgbench"),
            *("--host", postgres.url.partition("host=")[2], "--username", "app", "--no-vacuum"),
            *("--client", str(CLIENTS), "--jobs", "2", "--protocol", "simple"),
            *("--file", str(file)),
        ]
        # The session as Django opens it.
        self._env = os.environ | {"PGOPTIONS": options, "PGDATABASE": "postgres"}

    def rate(self, seconds: int) -> float:
        """Requests a second, without the time to connect."""
        done = subprocess.run(
            [*self._command, "--time", str(seconds)],
            env=self._env,
            check=True,
            capture_output=True,
            text=True,
        )
        found = re.search(r"tps = ([\d.]+)", done.stdout)
        assert " 0 (0.000%)" in done.stdout, done.stdout
        assert found
        return float(found[1])


def requests() -> Iterator[None]:
    """One keyed request for each step."""
    from django.db import connection

    from idempotency.core.keys import Scope
    from idempotency.core.policies import Verdict
    from idempotency.core.responses import RecordedResponse
    from idempotency.engine import Engine, Handled, KeyedRequest
    from idempotency.http.requests import build_policy

    headers = (("Content-Type", "application/json"), ("Location", "/v1/things/1"))
    recorded = RecordedResponse(201, headers, BODY.encode())

    cursor = connection.cursor()

    class Work:
        def handle(self, execution: object) -> Handled[None]:
            cursor.execute("INSERT INTO bench_work (note) VALUES (%s)", ["1" * 19])
            return Handled(None, recorded)

        def prepare(self, operation: object) -> dict[str, object]:
            raise NotImplementedError

        def verdict_of(self, error: Exception) -> Verdict:
            return Verdict.FAIL

    engine, policy, work = Engine(), build_policy({}), Work()
    while True:
        key = str(uuid.uuid4())
        request = KeyedRequest(Scope(ROUTE, TENANT, key), policy, lambda version: FINGERPRINT)
        engine.run(request, work)
        yield


def driver() -> Iterator[None]:
    """The same statements by psycopg alone: one keyed request for each step."""
    import psycopg
    from django.conf import settings

    session = settings.DATABASES["default"]["OPTIONS"]["options"]
    connection = psycopg.connect(
        os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=5, options=session
    )
    claiming, other = connection.cursor(), psycopg.ClientCursor(connection)
    lease, ttl, body = timedelta(seconds=30), timedelta(days=1), BODY.encode()
    while True:
        owner = uuid.uuid4()
        digest = hashlib.sha256(owner.bytes).digest()
        claim = [digest, str(owner), ROUTE, TENANT, FINGERPRINT, 1, owner, lease, True, None]
        claiming.execute(CLAIM, claim)
        row: Any = claiming.fetchone()
        other.execute("BEGIN; INSERT INTO bench_work (note) VALUES (%s)", ["1" * 19])
        completion = [row[1], owner, 201, HEADERS, body, ttl, None]
        other.execute(COMPLETE_AND_COMMIT, completion)
        other.fetchone()
        yield


def main() -> int:
    parser = figures.parser("engine")
    parser.add_argument("--seconds", type=int, default=5, help="of each block")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each")
    options = parser.parse_args()
    with servers.started() as postgres, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return _compare(postgres, Path(folder), options.seconds, options.rounds).end(
            options.results
        )


def _compare(postgres: Postgres, folder: Path, seconds: int, rounds: int) -> figures.Report:
    from django.db import connection, connections

    with connection.cursor() as cursor:
        cursor.execute(TABLE)
    session: str = connection.settings_dict["OPTIONS"]["options"]
    connections.close_all()  # before the fork
    engines, drivers = clients.Clients(requests), clients.Clients(driver)
    contenders = {
        "pgbench": Pgbench(postgres, folder / "plain.sql", script(), session).rate,
        "pgbench joined": Pgbench(postgres, folder / "joined.sql", joined(script()), session).rate,
        "psycopg": lambda seconds: len(drivers.run(seconds)) / seconds,
        "engine": lambda seconds: len(engines.run(seconds)) / seconds,
    }
    for run in contenders.values():
        run(1)  # the server's caches
    report = figures.Report("engine")
    rates = []
    for _ in range(rounds):
        rates.append({name: run(seconds) for name, run in contenders.items()})
        print(*(f"{name} {rate:8.0f}/s" for name, rate in rates[-1].items()), flush=True)
    report.details["rates"] = rates
    for name in contenders:
        report.add(f"{name}, median", statistics.median(one[name] for one in rates), "/s")

    def ratio(one: str, other: str) -> float:
        return statistics.median(rate[one] / rate[other] for rate in rates)

    report.add("engine over pgbench", ratio("engine", "pgbench"))
    report.add("engine over pgbench joined", ratio("engine", "pgbench joined"), least=LEAST)
    report.add("psycopg over pgbench joined", ratio("psycopg", "pgbench joined"))
    report.add("engine over psycopg", ratio("engine", "psycopg"))
    return report


if __name__ == "__main__":
    sys.exit(main())
