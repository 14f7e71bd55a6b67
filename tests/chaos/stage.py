"""The product for one chaos run: real processes in a temporary folder, on free ports.

All of them are children of the main thread and die with it (config/tether.py), so everything here
is called by that thread.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from config import embedded
from config.services import Patience, Service
from config.stack import BEAT, CELERY, ROOT
from tests.acceptance.product import PATIENCE, Product, children, seed, wait_until
from tests.chaos.intents import MERCHANTS
from tests.chaos.merchants import Account
from tests.chaos.side import Side
from tests.plugins.gateway import GatewayProcess

#: Seconds. Short, so that many a lease runs out.
LEASE = 3.0
ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
    "WEB_WORKERS": "2",
    "WEB_THREADS": "12",
    "GATEWAY_CALLS": "8",
    "GATEWAY_TIMEOUT": "1",
    "IDEMPOTENCY_LEASE": f"{LEASE}",
    "IDEMPOTENCY_BEAT": "2",
    "IDEMPOTENCY_RECONCILE_AFTER": "10",
    "DATABASE_STATEMENT_TIMEOUT": "8",
    "LOG_LEVEL": "WARNING",
    "DEMO": "1",
    "HTTPS": "0",
    "SECRET_KEY": "of the chaos run",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
}


class Stage:
    """What runs."""

    def __init__(self, folder: Path, running: ExitStack, side: Side) -> None:
        self.folder, self._running, self.side = folder, running, side
        self.clock = folder / "clock"
        self.postgres = embedded.Postgres(folder / "postgres", durable=True)
        self.valkey = embedded.Valkey(folder / "valkey", durable=False)
        self.gateway = GatewayProcess(folder / "gateway.sqlite3")

    def start(self) -> None:
        self._running.enter_context(self.postgres)
        self._running.enter_context(self.valkey)
        self._running.callback(self.gateway.stop)
        self.gateway.start()
        environment = ENVIRONMENT | {
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "GATEWAY_URL": f"http://127.0.0.1:{self._before(self.gateway.url, 'gateway')}",
            "CHAOS_CLOCK": str(self.clock),
        }
        os.environ.update(environment)
        seeded = seed(self.postgres.url, self.folder)
        self.database = seeded.url
        self.product = Product(self.folder, self.database, seeded.accounts, self.gateway)
        self.product.env |= environment | {"DATABASE_URL": self.database}
        self._running.callback(self.product.stop)
        self._start_product()
        self.desks = [self._running.enter_context(Desk(self, number)) for number in range(2)]
        names = [f"chaos{number:02d}" for number in range(MERCHANTS)]
        made = self.desks[0].ask("merchants", names)["merchants"]
        self.accounts = [Account(**one) for one in made]

    def _start_product(self) -> None:
        self.product.start("-c", "tests/chaos/gunicorn.py")
        self.url = f"http://127.0.0.1:{self._before(self.product.url, 'web')}"
        self.celery = self._service("celery", CELERY)
        # The last -s counts.
        self.beat = self._service("beat", [*BEAT, "-s", str(self.folder / "schedule")])
        for service in (self.celery, self.beat):
            self._running.enter_context(service)
        wait_until(lambda: "ready." in self.celery.log.read_text(errors="replace"), 60)

    def _before(self, url: str, name: str) -> int:
        """Put a proxy before it; its port."""
        return self.side.start_proxy(name, urlsplit(url).port or 80)

    def _service(self, name: str, command: list[str]) -> Service:
        log = self.folder / f"{name}.log"
        return Service(name, command, self.product.env, log, grace=10, cwd=ROOT)

    def look_after(self) -> list[str]:
        """Start again what has died and should not have; what that was."""
        found = []
        for service in (self.celery, self.beat, self.product.web):
            if service.died() is not None:
                # As often as it takes: the nemesis is no fault of the service's.
                service.patience = Patience()
                service.start_again()
                found.append(service.name)
        return found

    def web_workers(self) -> list[int]:
        return self.product.workers()

    def celery_processes(self) -> list[int]:
        """The worker's own process first, then its children."""
        return _family(self.celery)

    def beat_processes(self) -> list[int]:
        return _family(self.beat)

    def restart_postgres(self) -> None:
        """As after a power cut: it recovers from its log."""
        self.postgres.kill()
        self.postgres.start()


def _family(service: Service) -> list[int]:
    process = service.process
    return [] if process is None else [process.pid, *children(process.pid)]


class Desk:
    """A process of ``desk.py``. It answers one command at a time, in its own time."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._env = stage.product.env
        self._log = stage.folder / f"desk-{number}.log"
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.busy = False

    def __enter__(self) -> Desk:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.desk"],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()
        self._answers.get(timeout=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._answers.put(json.loads(line))

    def tell(self, *command: Any) -> bool:
        """Begin a command, unless another one is still being carried out."""
        if self.busy and self.answer() is None:
            return False
        assert self._process.stdin is not None
        self.busy = True
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return True

    def answer(self, seconds: float = 0.0) -> dict[str, Any] | None:
        """What came of it, if that is known by then."""
        try:
            found = self._answers.get(timeout=seconds) if seconds else self._answers.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        return found

    def ask(self, *command: Any, seconds: float = PATIENCE) -> dict[str, Any]:
        """Carry out a command; what came of it."""
        deadline = time.monotonic() + seconds
        while not self.tell(*command):
            if time.monotonic() > deadline:
                return {"error": "the desk is busy"}
            time.sleep(0.05)
        return self.answer(seconds) or {"error": "no answer"}
