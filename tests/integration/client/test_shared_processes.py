"""Eight processes share one breaker and one budget; one of them dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest
import redis

from idempotency.client.breaker import BreakerOpen, BreakerPolicy, Outcome
from idempotency.client.budget import BudgetPolicy
from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget
from tests.integration.client.worker import PATIENCE

PROCESSES = 8
#: Opens at the first failure, and soon probes.
QUICK = BreakerPolicy(minimum_calls=1, open_for=0.1, open_jitter=0)


class Process:
    """A worker that is ready, and waits for the word."""

    def __init__(self, url: str, dependency: str, task: str, policy: BreakerPolicy) -> None:
        arguments = [url, dependency, task, json.dumps(asdict(policy))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.client.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say_go(self) -> None:
        print(file=self.process.stdin, flush=True)

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.read())
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


Start = Callable[..., list[Process]]


@pytest.fixture
def start(url: str, dependency: str, server: redis.Redis) -> Iterator[Start]:
    """Start workers and wait until they are ready."""
    with ExitStack() as stack:
        stack.callback(server.delete, f"{dependency}:running", f"{dependency}:found")

        def start_all(task: str, number: int, policy: BreakerPolicy) -> list[Process]:
            started = [Process(url, dependency, task, policy) for _ in range(number)]
            for process in started:
                stack.callback(process.close)
            assert [process.read() for process in started] == ["ready"] * number
            return started

        yield start_all


def go(processes: list[Process]) -> list[dict[str, Any]]:
    for process in processes:
        process.say_go()
    return [process.result() for process in processes]


def trip(link: RedisLink, dependency: str, policy: BreakerPolicy) -> SharedBreaker:
    """A breaker that has opened."""
    breaker = SharedBreaker(link, dependency, "charge", policy)
    breaker.settle(breaker.admit(), Outcome.FAILURE)
    with pytest.raises(BreakerOpen):
        breaker.admit()
    return breaker


def lease_end(server: redis.Redis, dependency: str) -> int:
    """When the server takes the permit back, in microseconds of its clock."""
    leases = str(server.hget(f"idempotency:client:{dependency}", "charge:leases"))
    _probe, _, end = leases.partition("=")
    return int(end)


def server_time(server: redis.Redis) -> int:
    seconds, micro = server.time()
    return int(seconds) * 1_000_000 + int(micro)


@pytest.mark.parametrize("concurrent", [1, 2])
def test_eight_processes_probe_no_more_at_once_than_is_permitted(
    start: Start, link: RedisLink, dependency: str, concurrent: int
) -> None:
    policy = BreakerPolicy(**asdict(QUICK) | {"concurrent_probes": concurrent, "lease": 600.0})
    processes = start("probe", PROCESSES, policy)
    trip(link, dependency, policy)
    results = go(processes)
    assert max(result["most"] for result in results) <= concurrent
    assert sum(result["probes"] > 0 for result in results) > 1


def test_eight_processes_close_it_with_three_probes_in_all(
    start: Start, link: RedisLink, dependency: str
) -> None:
    processes = start("succeed", PROCESSES, QUICK)
    trip(link, dependency, QUICK)
    assert sum(result["probes"] for result in go(processes)) == 3


def test_with_traffic_a_killed_probe_is_replaced_when_its_lease_ends(
    start: Start, link: RedisLink, server: redis.Redis, dependency: str
) -> None:
    policy = BreakerPolicy(**asdict(QUICK) | {"lease": 3.0})
    watchers = start("watch", PROCESSES - 1, policy)
    [holder] = start("hold", 1, policy)
    trip(link, dependency, policy)
    go([holder])
    ends = lease_end(server, dependency)
    holder.kill()

    asked = sorted(tuple(ask) for result in go(watchers) for ask in result["asked"])
    [successor] = [(before, after) for before, after, admitted in asked if admitted]
    refused = [(before, after) for before, after, admitted in asked if not admitted]
    # Not before the lease ends, and with the first question after it: whoever was refused then was
    # refused because of that successor.
    assert successor[1] >= ends
    assert all(after >= successor[0] for before, after in refused if before >= ends)
    assert any(before < ends for before, _after in refused)


def test_without_traffic_a_killed_probe_is_replaced_at_the_first_call_after_its_lease(
    start: Start, link: RedisLink, server: redis.Redis, dependency: str
) -> None:
    policy = BreakerPolicy(**asdict(QUICK) | {"lease": 1.0})
    [holder] = start("hold", 1, policy)
    breaker = trip(link, dependency, policy)
    go([holder])
    ends = lease_end(server, dependency)
    holder.kill()
    until = time.monotonic() + PATIENCE
    while server_time(server) < ends:
        assert time.monotonic() < until
        time.sleep(0.01)
    probe = breaker.admit()
    assert probe.shared
    assert probe.probe
    breaker.settle(probe, Outcome.SUCCESS)
    for _ in range(2):
        breaker.settle(breaker.admit(), Outcome.SUCCESS)
    assert not breaker.admit().probe


def test_eight_processes_never_overdraw_one_budget(
    start: Start, link: RedisLink, dependency: str
) -> None:
    processes = start("spend", PROCESSES, QUICK)
    granted = sum(result["granted"] for result in go(processes))
    budget = SharedBudget(link, dependency, BudgetPolicy(window=3600))
    rest = 0
    while budget.spend():
        rest += 1
    assert granted + rest == PROCESSES * 50 // 10
