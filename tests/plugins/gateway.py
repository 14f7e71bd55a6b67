"""The simulated gateway as a fixture: a real process with a ledger of its own.

Load it with ``pytest_plugins = ["tests.plugins.gateway"]`` in the top ``conftest.py``.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0  # seconds until a process that says nothing is given up

LOST = "lost"


def until(condition: Callable[[], object]) -> None:
    """Wait for a state outside this process; fail when it does not come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class GatewayProcess:
    """A simulated gateway that can be killed and started again on the same port and ledger."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self.url = ""
        self._log = data.with_suffix(".log")
        self._process: subprocess.Popen[str] | None = None
        self._http = httpx2.Client(timeout=PATIENCE, trust_env=False)

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "payments.gateways.simulator", "--die-with-parent"]
        command += ["--port", port, "--data", str(self.data), *self.options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        if "http://" not in line:
            self.kill()
            raise RuntimeError(f"the gateway did not start: {self._log.read_text()}")
        self.url = line.split()[-1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit code; 0 without a process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            process.send_signal(number)
            return process.wait(PATIENCE)

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by us."""
        return self._process is not None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """End it for good, and fail if it ever met an error of its own."""
        self._http.close()
        self.stop()
        log = self._log.read_text() if self._log.exists() else ""
        assert "Traceback" not in log, log

    def charge(self, source: str = "tok_visa", *, key: str | None = None, **order: Any) -> Any:
        """POST /charges, 1000 EUR unless told otherwise; the answer as it comes."""
        order = {"amount": 1000, "currency": "EUR", "source": source, **order}
        return self.post("/charges", order, key=key)

    def outcome(self, source: str, *, key: str | None = "k1") -> int | str:
        """The status of the answer to such a charge, or ``LOST``."""
        try:
            return int(self.charge(source, key=key).status_code)
        except httpx2.RemoteProtocolError:
            return LOST

    def post(self, path: str, order: Any, *, key: str | None = None) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._http.post(self.url + path, json=order, headers=headers)

    def ledger(self) -> list[dict[str, Any]]:
        """Every movement of money, oldest first."""
        return self._get("/ledger")

    def charges(self, key: str) -> list[dict[str, Any]]:
        return self._get(f"/charges?key={key}")

    def refunds(self, key: str) -> list[dict[str, Any]]:
        return self._get(f"/refunds?key={key}")

    def find(self, kind: str, reference: str) -> list[dict[str, Any]]:
        """The ``charges`` or ``refunds`` of a reference of ours, declined ones too."""
        return self._get(f"/{kind}?reference={reference}")

    def control(self, **switches: Any) -> None:
        """``dedupe``, ``down``, ``delay`` (seconds)."""
        self.post("/control", switches).raise_for_status()

    def get(self, path: str) -> httpx2.Response:
        return self._http.get(self.url + path)

    def _get(self, path: str) -> list[dict[str, Any]]:
        answer = self.get(path).raise_for_status()
        content: list[dict[str, Any]] = answer.json()
        return content


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways with the given options; each has a ledger of its own."""
    started: list[GatewayProcess] = []

    def start(*options: str) -> GatewayProcess:
        process = GatewayProcess(tmp_path / f"gateway-{len(started)}.sqlite3", *options)
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture
def gateway(start_gateway: Callable[..., GatewayProcess]) -> GatewayProcess:
    """A simulated gateway with an empty ledger."""
    return start_gateway()
