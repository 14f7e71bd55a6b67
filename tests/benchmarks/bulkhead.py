"""What a gateway that stalls does to requests that do not need it, with the bulkhead and without.

    python -m tests.benchmarks.bulkhead

One process with four threads, eight merchants that keep charging, and a gateway that takes every
call and answers none. Quiet rounds, without charges, alternate with stalled ones in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from config import embedded
from tests.acceptance.product import PATIENCE, Product, Seeded, new_key, seed, wait_until
from tests.plugins.fault_proxy import Fault, FaultProxy
from tests.plugins.gateway import GatewayProcess

THREADS = 4
MERCHANTS = 8
LIMIT = 1.3
ROUNDS = 6

Times = dict[str, list[float]]


class Stall:
    """A gateway that can be made to stall."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._answers = threading.Event()
        self._answers.set()
        proxy.choose = self._choose

    def _choose(self, head: bytes) -> Fault:
        self._answers.wait(PATIENCE)
        return Fault.PASS

    @contextmanager
    def under(self, product: Product, calls: int) -> Iterator[None]:
        """Stall, and have merchants charge until ``calls`` of them wait in vain."""
        over = threading.Event()
        before = len(product.rows(_PENDING))
        self._answers.clear()
        with ThreadPoolExecutor(MERCHANTS) as pool:
            try:
                for _ in range(MERCHANTS):
                    pool.submit(_keep_charging, product, over)
                wait_until(lambda: len(product.rows(_PENDING)) >= before + calls)
                yield
            finally:
                over.set()
                self._answers.set()


_PENDING = "SELECT id FROM payments_charge WHERE status = 'pending'"


def _keep_charging(product: Product, over: threading.Event) -> None:
    while not over.is_set():
        answer = product.charge(new_key(), timeout=120.0)
        over.wait(float(answer.headers.get("Retry-After", 0)))


def measure(product: Product, times: Times, number: int) -> None:
    """Time so many requests of each kind that needs no gateway."""
    requests: dict[str, Callable[[], httpx2.Response]] = {
        "GET /v1/charges": lambda: product.get("/v1/charges", timeout=120.0),
        "POST /v1/transfers": lambda: product.transfer(new_key(), timeout=120.0),
    }
    for _ in range(number):
        for name, request in requests.items():
            began = time.perf_counter()
            answer = request()
            times.setdefault(name, []).append(time.perf_counter() - began)
            assert answer.is_success, answer.text


def p95(times: list[float]) -> float:
    """Milliseconds."""
    return statistics.quantiles(times, n=20, method="inclusive")[-1] * 1000


def compare(seeded: Seeded, folder: Path, *, calls: int, rounds: int, number: int) -> float:
    """Print both p95 and their ratio for a bulkhead of so many calls; the worst ratio."""
    with ExitStack() as running:
        gateway = GatewayProcess(folder / f"gateway-{calls}.sqlite3")
        running.callback(gateway.close)
        gateway.start()
        proxy = running.enter_context(FaultProxy(gateway.url))
        product = Product(folder, seeded.copy(), seeded.accounts, gateway)
        running.callback(product.stop)
        product.env |= {
            "WEB_WORKERS": "1",
            "WEB_THREADS": str(THREADS),
            "GATEWAY_CALLS": str(calls),
            "GATEWAY_URL": proxy.url,
            "GATEWAY_TIMEOUT": "2",
        }
        product.start()
        stall = Stall(proxy)
        measure(product, {}, 20)  # connections, caches
        quiet: Times = {}
        stalled: Times = {}
        for _ in range(rounds):
            measure(product, quiet, number)
            with stall.under(product, min(calls, THREADS)):
                measure(product, stalled, number)
    ratios = {name: p95(stalled[name]) / p95(quiet[name]) for name in quiet}
    for name, ratio in ratios.items():
        line = f"quiet {p95(quiet[name]):8.1f} ms   stalled {p95(stalled[name]):8.1f} ms"
        print(f"  {name:<20}p95 {line}   ratio {ratio:.2f}", flush=True)
    return max(ratios.values())


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        postgres = running.enter_context(embedded.Postgres(folder / "postgres", durable=True))
        valkey = running.enter_context(embedded.Valkey(folder / "valkey", durable=False))
        os.environ |= {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "DEMO": "1",
            "SECRET_KEY": "of the benchmark",
            "GATEWAY_URL": "http://127.0.0.1:9000",
            "HTTPS": "0",
            "ALLOWED_HOSTS": "localhost,127.0.0.1",
        }
        seeded = seed(postgres.url, folder)
        print(f"{THREADS} threads, room for {THREADS - 1} calls (ratio at most {LIMIT}):")
        worst = compare(seeded, folder, calls=THREADS - 1, rounds=ROUNDS, number=50)
        print(f"{THREADS} threads, no bulkhead:")
        compare(seeded, folder, calls=100, rounds=1, number=5)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
