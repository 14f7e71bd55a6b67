"""What a web process keeps of the keys it has seen: its memory after 1,000 and after 100,000.

    python -m tests.benchmarks.memory [--keys 100000] [--first 1000] [--results FOLDER]

The product as it is deployed, gunicorn with the project's configuration but one worker, so that all
keys meet one process. Four connections send transfers, each under a key of its own. The figure is
the worker's resident set by /proc, which counts what it shares with gunicorn's master too.

Exit code 1 when it has grown by more than 5 %. A hundred thousand transfers take some minutes.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from config import embedded
from tests.acceptance.product import Product, new_key, seed
from tests.benchmarks import figures
from tests.plugins.gateway import GatewayProcess

MOST = 1.05
CONNECTIONS = 4
#: How many readings the picture has.
STEPS = 50


def main() -> int:
    parser = figures.parser("memory")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    with _product() as product:
        readings = _measure(product, options.first, options.keys)
    report = figures.Report("memory")
    for keys in (options.first, options.keys):
        report.add(f"resident after {keys:,} keys", readings[keys] / 1024, "MB")
    grown = readings[options.keys] / readings[options.first]
    report.add("the second over the first", grown, most=MOST)
    report.details["KiB by keys"] = readings
    options.results.mkdir(parents=True, exist_ok=True)
    _draw(readings, options.results / "memory.png")
    return report.end(options.results)


@contextmanager
def _product() -> Iterator[Product]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        # How fast a commit is flushed is not what is measured.
        postgres = running.enter_context(embedded.Postgres(folder / "postgres", durable=False))
        valkey = running.enter_context(embedded.Valkey(folder / "valkey", durable=False))
        os.environ |= {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "SECRET_KEY": "of the benchmark",
            "GATEWAY_URL": "http://127.0.0.1:9000",
            "HTTPS": "0",
            "ALLOWED_HOSTS": "localhost,127.0.0.1",
        }
        seeded = seed(postgres.url, folder)
        gateway = GatewayProcess(folder / "gateway.sqlite3")
        running.callback(gateway.close)
        gateway.start()
        product = Product(folder, seeded.copy(), seeded.accounts, gateway)
        running.callback(product.stop)
        product.env |= {
            "WEB_WORKERS": "1",
            "WEB_THREADS": str(CONNECTIONS),
            "DEMO_FAULTS": "0",
            "LOG_FORMAT": "json",
        }
        yield product.start()


def _measure(product: Product, first: int, keys: int) -> dict[int, int]:
    """The worker's resident set in KiB by the number of keys it has seen."""
    (worker,) = product.workers()
    connections = [http.client.HTTPConnection(product.url[7:]) for _ in range(CONNECTIONS)]
    wanted = sorted({first, keys, *range(0, keys + 1, max(1, keys // STEPS))})
    readings = {0: _resident(worker)}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for before, now in itertools.pairwise(wanted):
            shares = [range(before + own, now, CONNECTIONS) for own in range(CONNECTIONS)]
            list(pool.map(_send, connections, shares, itertools.repeat(product.accounts)))
            assert product.workers() == [worker], "another worker took its place"
            readings[now] = _resident(worker)
    return readings


def _send(connection: http.client.HTTPConnection, numbers: range, accounts: dict[str, str]) -> None:
    for number in numbers:
        sender, recipient = ("acme", "globex") if number % 8 < 4 else ("globex", "acme")
        key = new_key()
        body = {"to": accounts[recipient], "amount": 1, "currency": "EUR", "description": key}
        headers = {
            "Authorization": f"Bearer sk_test_{sender}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        connection.request("POST", "/v1/transfers", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 201, text


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory")


def _draw(readings: dict[int, int], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(readings), [value / 1024 for value in readings.values()])
    axes.set(xlabel="keys the process has seen", ylabel="resident set in MB")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
