"""One of the processes that share a breaker: ``python -m tests.integration.client.worker URL
DEPENDENCY TASK POLICY``. It says "ready", waits for a line, does its task, and prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import redis

from idempotency.client.breaker import Admission, BreakerOpen, BreakerPolicy, Outcome
from idempotency.client.budget import BudgetPolicy
from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget

#: Seconds after which a worker that waits for something gives up.
PATIENCE = 60.0


class Worker:
    """A process with a breaker, and with a connection of its own for what it observes."""

    def __init__(self, url: str, dependency: str, policy: dict[str, Any]) -> None:
        self.server = redis.Redis.from_url(url, decode_responses=True)
        self.dependency = dependency
        link = RedisLink.connect(url, timeout=PATIENCE)
        self.breaker = SharedBreaker(link, dependency, "charge", BreakerPolicy(**policy))
        self.budget = SharedBudget(link, dependency, BudgetPolicy(window=3600))

    def server_time(self) -> int:
        """Microseconds."""
        seconds, micro = self.server.time()
        return int(seconds) * 1_000_000 + int(micro)

    def ask(self) -> Admission | None:
        """An admission by Redis, or None."""
        try:
            admission = self.breaker.admit()
        except BreakerOpen:
            return None
        assert admission.shared, "this decision was a local one"
        return admission

    def patiently(self) -> Admission:
        """Ask until admitted."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if admission := self.ask():
                return admission
        raise TimeoutError("never admitted")

    def probe(self) -> dict[str, Any]:
        """Probe in vain, over and over, and say how many probes ran at once, as the server saw."""
        running = f"{self.dependency}:running"
        most = probes = 0
        for _ in range(300):
            if admission := self.ask():
                probes += 1
                # Within the lease: between its grant and its return, in the server's own order.
                most = max(most, int(self.server.incr(running)))
                self.server.decr(running)
                self.breaker.settle(admission, Outcome.NEUTRAL)
        return {"most": most, "probes": probes}

    def succeed(self) -> dict[str, Any]:
        """Call with success until the breaker is closed, and count the probes."""
        probes = 0
        while (admission := self.patiently()).probe:
            probes += 1
            self.breaker.settle(admission, Outcome.SUCCESS)
        return {"probes": probes}

    def hold(self) -> dict[str, Any]:
        """Take a permit and keep it."""
        return {"probe": self.patiently().probe}

    def watch(self) -> dict[str, Any]:
        """Ask until somebody is admitted; return every question between two looks at the server's
        clock."""
        found, asked = f"{self.dependency}:found", []
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not self.server.exists(found):
            before = self.server_time()
            admission = self.ask()
            asked.append((before, self.server_time(), admission is not None))
            if admission:
                self.server.set(found, 1)
        return {"asked": asked}

    def spend(self) -> dict[str, Any]:
        """Earn and spend; return how much was granted."""
        granted = 0
        for _ in range(50):
            self.budget.credit()
            granted += self.budget.spend() is not None
        return {"granted": granted}


def main(url: str, dependency: str, task: str, policy: str) -> None:
    worker = Worker(url, dependency, json.loads(policy))
    run: Callable[[], dict[str, Any]] = getattr(worker, task)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run()), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
