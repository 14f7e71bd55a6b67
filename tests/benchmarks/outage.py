"""A gateway that is dead for 20 seconds, and what the retries make of it: on the live product.

    python -m tests.benchmarks.outage

Two runs, one after the other, at the same rates: with what bounds retries (the client half's budget
and breaker under the product's calls and in its merchants, the product's own retry budget), and
without. Each has web processes, a worker, PostgreSQL, Valkey and a gateway of its own, on loopback;
the gateway is killed and started again. What stands before it counts what reaches it, and lets it
do only so much a second: turning a request away costs 0.3 of serving one.

Prints a table and writes a picture and a CSV, one line a second. Takes under three minutes. Ends
with 1 where a charge was made twice, or where the run with bounds is not the better one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from config import embedded
from config.embedded import free_port
from config.services import Service
from config.stack import CELERY, HOST, ROOT
from tests.acceptance.product import (
    PATIENCE,
    Product,
    Seeded,
    new_key,
    seed,
    together,
    wait_until,
)
from tests.benchmarks import outage_front, outage_report
from tests.benchmarks.outage_merchants import Merchants, naive, send, with_the_client_half
from tests.benchmarks.outage_report import Drill, Plan
from tests.plugins.gateway import GatewayProcess

#: Threads of each of two web processes; all but one may call the gateway.
THREADS = 16
#: Charges before the clock starts, at once; fewer than the gateway can do in a second.
WARM_UP = 8
ENVIRONMENT = {
    "WEB_WORKERS": "2",
    "WEB_THREADS": f"{THREADS}",
    "GATEWAY_CALLS": f"{THREADS - 1}",
    # The worker looks often for what it can bring to an end.
    "IDEMPOTENCY_BEAT": "1",
    "LOG_LEVEL": "WARNING",
}
DATA = ROOT / ".data"


@dataclass(frozen=True)
class Kind:
    """One way to call a gateway, from the merchants to the product's adapter."""

    name: str
    settings: str
    merchants: Merchants


WITH = Kind("with", "config.settings", with_the_client_half)
WITHOUT = Kind("without", "tests.benchmarks.outage_settings", naive)


class Stage:
    """The product and all that it needs, for one run."""

    def __init__(
        self, kind: Kind, plan: Plan, seeded: Seeded, folder: Path, running: ExitStack
    ) -> None:
        folder.mkdir()
        self._folder, self._running = folder, running
        valkey = running.enter_context(embedded.Valkey(folder / "valkey", durable=False))
        self.gateway = GatewayProcess(folder / "gateway.sqlite3")
        running.callback(self.gateway.close)
        self.gateway.start()
        #: What the front has seen.
        self.seen = folder / "seen.txt"
        self.product = Product(folder, seeded.copy(), seeded.accounts, self.gateway)
        self.product.env |= {
            "REDIS_URL": valkey.url,
            "GATEWAY_URL": self._start_front(plan.capacity),
            "DJANGO_SETTINGS_MODULE": kind.settings,
            **ENVIRONMENT,
        }
        running.callback(self.product.stop)
        # Both at once: they take their time.
        worker = self._start("worker", [*CELERY, "-B", "-s", str(folder / "beat")])
        self.product.start()
        wait_until(lambda: "ready." in worker.log.read_text(), 60)

    def _start_front(self, capacity: float) -> str:
        """Start what stands before the gateway; its URL."""
        port = free_port()
        command = [sys.executable, "-m", "tests.benchmarks.outage_front"]
        command += ["--upstream", self.gateway.url, "--capacity", f"{capacity}"]
        command += ["--port", f"{port}", "--log", f"{self.seen}"]
        self._start("front", command)
        wait_until(lambda: outage_front.answers(port))
        return f"http://{HOST}:{port}"

    def _start(self, name: str, command: list[str]) -> Service:
        log = self._folder / f"{name}.log"
        service = Service(name, command, self.product.env, log, grace=10, cwd=ROOT)
        return self._running.enter_context(service)


def drill(kind: Kind, plan: Plan, seeded: Seeded, folder: Path) -> Drill:
    """Run one of the two."""
    print(f"{kind.name}: {plan.seconds:.0f} s", flush=True)
    begun = Future[float]()
    with ExitStack() as running:
        stage = Stage(kind, plan, seeded, folder, running)
        product = stage.product
        _warm_up(product)
        load = os.getloadavg()[0]
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send, kind.merchants, product.url, plan.rate, plan.seconds, begun)
            began = begun.result(PATIENCE)
            # Started from this thread: the gateway dies with the one that started it.
            died, back = _kill_and_start(stage.gateway, began, plan)
            traffic = sending.result()
        return Drill(
            kind.name,
            plan,
            began=began,
            died=died,
            back=back,
            traffic=traffic,
            reached=_read(stage.seen, began),
            wrong=_wrong_charges(product),
            loads=(load, os.getloadavg()[0]),
        )


def _warm_up(product: Product) -> None:
    """Let connections be made and caches be filled before anything is counted."""
    for answer in together(WARM_UP, lambda number: product.charge(new_key())):
        assert answer.status_code == 201, answer.text
    time.sleep(1)  # what the gateway can do in a second is there again


def _kill_and_start(gateway: GatewayProcess, began: float, plan: Plan) -> tuple[float, float]:
    """Let it be dead from one second to another; when it died and when it was back."""
    _sleep_until(began + plan.dies)
    gateway.kill()
    died = time.monotonic()
    _sleep_until(began + plan.returns)
    gateway.start()
    return died, time.monotonic()


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _read(seen: Path, began: float) -> list[tuple[float, str]]:
    lines = (line.split() for line in seen.read_text().splitlines())
    reached = [(float(came), fate) for came, fate in lines]
    return [(came, fate) for came, fate in reached if came >= began]


def _wrong_charges(product: Product) -> int:
    """Keys under which the gateway moved money twice, and movements that we have no charge for."""
    names = product.rows("SELECT public_id, description AS key FROM payments_charge")
    keys = {name["public_id"]: name["key"] for name in names}
    moved = Counter(keys.get(entry["reference"]) for entry in product.gateway.ledger())
    return moved.pop(None, 0) + sum(times > 1 for times in moved.values())


def run(plan: Plan, folder: Path) -> list[Drill]:
    """Both drills, on one PostgreSQL."""
    with embedded.Postgres(folder / "postgres", durable=True) as postgres:
        os.environ |= {
            "DATABASE_URL": postgres.url,
            "DEMO": "1",
            "SECRET_KEY": "of the benchmark",
            # Of the seeding, which needs neither.
            "GATEWAY_URL": "http://127.0.0.1:9000",
            "REDIS_URL": "redis://127.0.0.1:6379/0",
            "HTTPS": "0",
            "ALLOWED_HOSTS": "localhost,127.0.0.1",
        }
        seeded = seed(postgres.url, folder)
        return [drill(kind, plan, seeded, folder / kind.name) for kind in (WITHOUT, WITH)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=Plan.rate, help="charges a second")
    parser.add_argument("--png", type=Path, default=DATA / "outage.png")
    parser.add_argument("--csv", type=Path, default=DATA / "outage.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        drills = run(Plan(rate=options.rate), folder)
    outage_report.show(drills)
    for path in (options.png, options.csv):
        path.parent.mkdir(parents=True, exist_ok=True)
    outage_report.draw(drills, options.png)
    outage_report.write(drills, options.csv)
    print(f"{options.png}, {options.csv}")
    return int(not outage_report.bounds_help(*drills))


if __name__ == "__main__":
    sys.exit(main())
