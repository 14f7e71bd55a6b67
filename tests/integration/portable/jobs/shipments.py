"""Operations that stand abandoned, and jobs that are held in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib.auth.models import Group
from django.db import connection, connections

from idempotency.core.responses import RecordedResponse
from idempotency.http.requests import build_policy
from idempotency.operations import PREPARED, Done, Operation, Outcome, Reply, Unknown, envelope
from idempotency.stores import get_store
from tests.integration.portable.conformance.harness import PATIENCE, Key

JOBS = [
    "reclaim_expired_leases",
    "resume_operations",
    "create_partitions",
    "drop_expired_partitions",
    "prune_expired_keys",
]


class Shipment(Operation):
    """An operation whose outside call answers as a test wants."""

    name = "tests.shipment"
    service = "carrier"
    #: By what the operation is called: what its call does next.
    answers: ClassVar[dict[str, Callable[[], Outcome]]] = {}
    keys: ClassVar[list[str]] = []

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        self.keys.append(key)
        return self.answers.get(context["what"], lambda: Done({"id": 1}))()

    def finalize(self, context: dict[str, Any], outcome: Any) -> Reply:
        Group.objects.create(name=context["what"])
        return Reply(201, outcome.result)


SHIPPED = RecordedResponse(201, (("Content-Type", "application/json"),), b'{"id":1}')


def named(name: str = "k") -> Key:
    return Key(get_store(), name)


def abandoned(what: str = "k", *, attempts: int = 1) -> Key:
    """An operation that was prepared, and whose every attempt came to nothing."""
    key = named(what)
    lease = key.won(lease=timedelta(0))
    kept = envelope(Shipment(), {"what": what}, build_policy({}))
    key.store.record_recovery_point(lease, PREPARED, kept)
    for _ in range(attempts - 1):
        assert key.store.take_over(lease.key_id, timedelta(0))
    return key


def away() -> Outcome:
    return Unknown("the carrier is away")


@contextmanager
def paused_inside(run: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Runs a job in another thread and holds it right after it got its lock, until the end."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(execute: Any, sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if "pg_try_advisory_lock" in sql:
            inside.set()
            assert go_on.wait(PATIENCE)
        return result

    def work() -> Any:
        try:
            with connection.execute_wrapper(hold):
                return run()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(work)
        assert inside.wait(PATIENCE)
        try:
            yield future
        finally:
            go_on.set()
