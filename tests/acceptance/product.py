"""The product in processes of its own, for tests that kill them, cut them off and race them.

A `Product` is a gunicorn with two workers and, when asked for, a Celery worker with beat, over one
database and one simulated gateway. What happened is read from the database and from the gateway's
own ledger, never from the product's word.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg
from psycopg.rows import dict_row

from config.embedded import free_port, tail
from config.services import Service
from config.stack import CELERY, HOST, ROOT, WEB
from tests.plugins.gateway import GatewayProcess

#: Seconds until something that must happen is taken for something that will not.
PATIENCE = 30.0
#: Of gunicorn: 50 requests are then really in progress at once.
THREADS = 25

T = TypeVar("T")
_numbers = itertools.count()


def wait_until(condition: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Poll until the condition is true, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.02)
    return result


def together(count: int, function: Callable[[int], T]) -> list[T]:
    """Call `function` with 0 to count - 1 in as many threads, which all start at one moment."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait(PATIENCE)
        return function(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def new_key(prefix: str = "key") -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


# --- Databases ------------------------------------------------------------------------------------


def with_name(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@dataclass(frozen=True)
class Seeded:
    """A database that is migrated and has the demo's merchants, to be copied."""

    url: str
    #: "acme" and "globex" -> the account's public id.
    accounts: dict[str, str]

    def copy(self) -> str:
        """The URL of a new database like this one."""
        name = f"product_{os.getpid()}_{next(_numbers)}"
        template = urlsplit(self.url).path[1:]
        with psycopg.connect(with_name(self.url, "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return with_name(self.url, name)


def seed(server: str, folder: Path) -> Seeded:
    """Make a database on the server as `make run` does."""
    name = f"seeded_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(with_name(server, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url, result = with_name(server, name), folder / f"{name}.json"
    env = os.environ | {"DATABASE_URL": url, "DEMO": "1"}
    command = [sys.executable, "-m", "config.prepare", str(result)]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    merchants = json.loads(result.read_text())["merchants"]
    return Seeded(url, {one["name"].lower(): one["account"] for one in merchants})


def drop(url: str) -> None:
    name = urlsplit(url).path[1:]
    with psycopg.connect(with_name(url, "postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


# --- The product ----------------------------------------------------------------------------------


class Product:
    """What runs over one database. `env` goes to all of its processes."""

    def __init__(
        self,
        folder: Path,
        database: str,
        accounts: dict[str, str],
        gateway: GatewayProcess,
        **env: str,
    ) -> None:
        self.folder, self.accounts, self.gateway = folder, accounts, gateway
        self.database = database
        port = str(free_port())
        self.url = f"http://{HOST}:{port}"
        metrics = folder / "metrics"
        metrics.mkdir(exist_ok=True)
        self.env = os.environ | {
            "DATABASE_URL": database,
            "GATEWAY_URL": gateway.url,
            "PORT": port,
            "DEMO": "1",
            "DEMO_FAULTS": "1",
            "SECRET_KEY": "of the acceptance tests",
            "WEB_WORKERS": "2",
            "WEB_THREADS": str(THREADS),
            # As many charges as requests; test_gateway_bulkhead.py has the real proportion.
            "GATEWAY_CALLS": str(THREADS),
            "LOG_FORMAT": "console",
            "PROMETHEUS_MULTIPROC_DIR": str(metrics),
        }
        self.env |= env
        #: Those that were sent; no log may hold one.
        self.keys: set[str] = set()
        self._running = contextlib.ExitStack()
        self._http = httpx2.Client(
            base_url=self.url,
            timeout=PATIENCE,
            trust_env=False,
            # A kept connection to a worker that was killed would fail the next request.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._running.callback(self._http.close)

    def start(self, *options: str) -> Product:
        """Start gunicorn with the project's configuration, and wait until it answers."""
        self.web = self._start("web", [*WEB, *options])
        wait_until(lambda: self._is_healthy(self.web), 60)
        return self

    @contextlib.contextmanager
    def celery(self) -> Iterator[None]:
        """A worker with beat, for as long as the context."""
        schedule = self.folder / f"beat-{next(_numbers)}"
        worker = self._service("celery", [*CELERY, "-B", "-s", str(schedule)])
        with worker:
            wait_until(lambda: _says(worker, "ready."), 60)
            yield

    def stop(self) -> None:
        self._running.close()

    @contextlib.contextmanager
    def jobs(self) -> Iterator[Jobs]:
        """A process that runs maintenance jobs."""
        with (self.folder / f"jobs-{next(_numbers)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _JOBS],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with process:  # the end of its input ends it
            yield Jobs(process)

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of manage.py's commands to its end."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self.env, check=check, capture_output=True, text=True
        )

    def workers(self) -> list[int]:
        """The process ids of gunicorn's workers."""
        assert self.web.process is not None
        return children(self.web.process.pid)

    def log(self) -> str:
        return self.web.log.read_text(errors="replace")

    def _start(self, name: str, command: list[str]) -> Service:
        return self._running.enter_context(self._service(name, command))

    def _service(self, name: str, command: list[str]) -> Service:
        log = self.folder / f"{name}-{next(_numbers)}.log"
        return Service(name, command, self.env, log, grace=15, cwd=ROOT)

    def _is_healthy(self, service: Service) -> bool:
        assert service.died() is None, tail(service.log, 40)
        with contextlib.suppress(httpx2.TransportError):
            return self._http.get("/healthz").status_code == 200
        return False

    # Requests

    def charge(self, key: str, *, source: str = "tok_visa", **options: Any) -> httpx2.Response:
        """POST /v1/charges, 1000 EUR unless told otherwise, with the key as its description."""
        body = {"amount": 1000, "currency": "EUR", "source": source, "description": key}
        return self.post("/v1/charges", key, body, **options)

    def transfer(self, key: str, **options: Any) -> httpx2.Response:
        """POST /v1/transfers, 10 EUR from Acme to Globex, with the key as its description."""
        body = {"to": self.accounts["globex"], "amount": 10, "currency": "EUR", "description": key}
        return self.post("/v1/transfers", key, body, **options)

    def pay(self, kind: str, key: str, **options: Any) -> httpx2.Response:
        """A charge or a transfer."""
        call: Callable[..., httpx2.Response] = getattr(self, kind)
        return call(key, **options)

    def post(
        self,
        path: str,
        key: str,
        body: dict[str, Any],
        *,
        fault: str | None = None,
        timeout: float = PATIENCE,
        **changes: Any,
    ) -> httpx2.Response:
        headers = self.headers(key, fault)
        return self._http.post(path, json=body | changes, headers=headers, timeout=timeout)

    def get(self, path: str, timeout: float = PATIENCE) -> httpx2.Response:
        return self._http.get(path, headers=self.headers(), timeout=timeout)

    def headers(self, key: str | None = None, fault: str | None = None) -> dict[str, str]:
        headers = {"Authorization": "Bearer sk_test_acme"}
        if key is not None:
            self.keys.add(key)
            headers["Idempotency-Key"] = key
        if fault is not None:
            headers["X-Demo-Fault"] = fault
        return headers

    def retry(self, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        """Repeat a request while the answer says that the same key may be tried again."""
        return wait_until(lambda: _final(send()))

    # What happened

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.database, autocommit=True, row_factory=dict_row) as reader:
            return reader.execute(query, parameters).fetchall()

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of the test's own."""
        return psycopg.connect(self.database)

    def key(self, key: str) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM idempotency_idempotencykey WHERE key = %s", key)
        return row

    def state(self, key: str) -> str:
        state: str = self.key(key)["state"]
        return state

    def events(self, key: str) -> list[str]:
        found = self.rows(
            "SELECT e.kind FROM idempotency_keyevent AS e JOIN idempotency_idempotencykey AS k"
            " ON k.id = e.key_id WHERE k.key = %s ORDER BY e.id",
            key,
        )
        return [row["kind"] for row in found]

    def effects(self, key: str) -> int:
        """How often our ledger moved money for what has this key as its description."""
        (row,) = self.rows(
            "SELECT count(*) AS posted FROM payments_ledgertransaction AS t"
            " LEFT JOIN payments_charge AS c ON c.id = t.charge_id"
            " LEFT JOIN payments_transfer AS m ON m.id = t.transfer_id"
            " WHERE %s IN (c.description, m.description)",
            key,
        )
        posted: int = row["posted"]
        return posted

    def charged(self, key: str) -> int:
        """How often the gateway moved money for charges with this key as their description."""
        found = self.rows("SELECT public_id FROM payments_charge WHERE description = %s", key)
        ours = {row["public_id"] for row in found}
        return sum(entry["reference"] in ours for entry in self.gateway.ledger())

    def assert_ledgers_agree(self) -> None:
        """The gateway's movements are those of our ledger, and ours sum to zero."""
        assert self._ours() == self._theirs()
        unbalanced = self.rows(
            "SELECT e.transaction_id FROM payments_ledgerentry AS e"
            " JOIN payments_ledgeraccount AS a ON a.id = e.account_id"
            " GROUP BY e.transaction_id, a.currency HAVING sum(e.amount) <> 0"
        )
        drifted = self.rows(
            "SELECT a.id FROM payments_ledgeraccount AS a"
            " LEFT JOIN payments_ledgerentry AS e ON e.account_id = a.id"
            " WHERE a.merchant_id IS NOT NULL"
            " GROUP BY a.id HAVING a.balance <> coalesce(sum(e.amount), 0)"
        )
        assert (unbalanced, drifted) == ([], [])

    def _ours(self) -> list[tuple[Any, ...]]:
        """What our ledger says went through the gateway: the entries of its clearing account."""
        found = self.rows(
            "SELECT CASE WHEN t.charge_id IS NULL THEN 'refund' ELSE 'charge' END AS kind,"
            " coalesce(c.gateway_reference, r.gateway_reference) AS id,"
            " coalesce(c.public_id, r.public_id) AS reference,"
            " abs(e.amount) AS amount, a.currency"
            " FROM payments_ledgerentry AS e"
            " JOIN payments_ledgeraccount AS a ON a.id = e.account_id"
            " JOIN payments_ledgertransaction AS t ON t.id = e.transaction_id"
            " LEFT JOIN payments_charge AS c ON c.id = t.charge_id"
            " LEFT JOIN payments_refund AS r ON r.id = t.refund_id"
            " WHERE a.kind = 'gateway_clearing'"
        )
        return sorted(tuple(row.values()) for row in found)

    def _theirs(self) -> list[tuple[Any, ...]]:
        names = ("kind", "id", "reference", "amount", "currency")
        return sorted(tuple(entry[name] for name in names) for entry in self.gateway.ledger())


class Jobs:
    """A process with Django loaded: a job begins when it is told to, not seconds later."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready"

    def run(self, name: str) -> dict[str, Any]:
        """Run a job of `idempotency.maintenance` to its end; its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._line())
        return result

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


_JOBS = """
import dataclasses, json, sys
import django

django.setup()
from idempotency import maintenance

print("ready", flush=True)
for line in sys.stdin:
    result = getattr(maintenance, line.strip())()
    print(json.dumps(dataclasses.asdict(result)), flush=True)
"""


def children(pid: int) -> list[int]:
    """The process ids of a process's children, by /proc."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parent = status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(status.parent.name))
    return sorted(found)


def open_files(pid: int) -> set[str]:
    """What the descriptors of a process lead to, by /proc; nothing once it has ended."""
    found = set()
    with contextlib.suppress(OSError):  # the process ended meanwhile, a backend of PostgreSQL say
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(str(descriptor.readlink()))
    return found


def _final(answer: httpx2.Response) -> httpx2.Response | None:
    again = answer.headers["Content-Type"] == "application/problem+json"
    return None if again and answer.json().get("retry") == "same_key" else answer


def _says(service: Service, words: str) -> bool:
    assert service.died() is None, tail(service.log, 40)
    return words in service.log.read_text(errors="replace")
