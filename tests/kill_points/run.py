"""Kill each point of a path in turn, and have what it left recovered from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import redis
from django.conf import settings
from django.db import connections
from django.test import Client

from idempotency.outbox import nudging
from idempotency.stores import get_store
from idempotency.waiting import get_waiter
from payments.gateways.choice import get_gateway
from payments.models import Merchant
from payments.webhooks import endpoints
from tests.integration.client.loopback import Answer, Seen, Server
from tests.kill_points import maintenance_paths, paths
from tests.kill_points.children import forked
from tests.kill_points.paths import AfterCrash, Bench, Path
from tests.kill_points.points import Points

PATHS: tuple[type[Path], ...] = (
    paths.Transfer,
    paths.Charge,
    paths.Refund,
    paths.ResumeUncalled,
    paths.ResumeCalled,
    paths.Reclaim,
    maintenance_paths.Prune,
    maintenance_paths.CreateDays,
    maintenance_paths.DropDays,
    maintenance_paths.Dispatch,
)


@dataclass
class Report:
    """What a path came to."""

    path: str
    points: int = 0
    killed: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        good = self.killed - len(self.problems)
        return (
            f"{self.path}: {self.points} points, {self.killed} killed, {good} recovered, "
            f"{self.seconds:.0f} s"
        )


def warm(bench: Bench, receiver: Server) -> None:
    """Load what requests load, and leave no connection to be inherited. Acme has an endpoint."""
    # In a thread of its own it would make a path's points come in another order each time.
    nudging._celery = lambda: None
    Client().get("/nowhere", SERVER_NAME="localhost")
    get_store(), get_waiter(), get_gateway()  # made, and not connected
    connections.close_all()
    url = f"http://localhost:{receiver.server_address[1]}/hook"

    def register() -> None:
        acme = Merchant.objects.get(public_id=bench.product.accounts["acme"])
        endpoints.put(merchant=acme, endpoint_id="kill-points", url=url)

    forked(register).value()


def receiver(bench: Bench) -> Server:
    """Where Acme's webhooks arrive."""

    def answer(seen: Seen) -> Answer:
        headers = {name.lower(): value for name, value in seen.headers.items()}
        bench.arrivals[headers["webhook-id"]] += 1
        return Answer(200, b"")

    return Server(answer)


def run(path: Path, every: int) -> Report:
    """Kill every N-th point of a path."""
    began = time.monotonic()
    labels = _undisturbed(path, every)
    report = Report(path.name, len(labels))
    for number in range(max(1, min(every, len(labels)) // 2), len(labels) + 1, every):
        report.killed += 1
        for problem in _cut(path, number):
            report.problems.append(f"point {number}, {labels[number - 1]}: {problem}")
    report.seconds = time.monotonic() - began
    return report


def _undisturbed(path: Path, every: int) -> list[str]:
    """Run a path to its end, and list its points. Twice when each of them counts: the first run in
    a new database makes what later ones find."""
    if every == 1:
        facts = _arranged(path)
        forked(partial(path.act, facts)).value()
        forked(partial(path.recover, facts, jobs_first=True)).value()
        path.confirm(facts)
    labels: list[str] = forked(partial(_points_of, path, _arranged(path))).value()
    return labels


def _points_of(path: Path, facts: dict[str, Any]) -> list[str]:
    points = Points()
    with points.watching():
        path.act(facts)
    return points.passed


def _cut(path: Path, number: int) -> Iterator[str]:
    """Kill a path at a point, and recover; what went wrong."""
    facts = _arranged(path)

    def act() -> None:
        with Points(at=number).watching():
            path.act(facts)

    ended = forked(act)
    if not ended.was_killed:
        yield f"was not reached: {ended}"
        return
    _flush_valkey()
    # The two points around a statement come in the same order, the next two in the other.
    recovered = forked(lambda: path.recover(facts, jobs_first=(number + 1) // 2 % 2 == 0))
    if recovered.code:
        yield f"not recovered ({recovered.code})\n{recovered.said}"
        return
    try:
        path.confirm(facts)
    except AssertionError as error:
        yield str(error)


def _arranged(path: Path) -> Any:
    _flush_valkey()
    facts = forked(path.arrange).value()
    if isinstance(path, AfterCrash):
        left = forked(lambda: path.leave_behind(facts))
        assert left.was_killed, left
    _flush_valkey()
    return facts


def _flush_valkey() -> None:
    """Forget retry budgets and scripts: five hundred crashes are more retries than a service
    takes, and a path's points must not depend on the run before it."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.flushdb()
        client.script_flush()
