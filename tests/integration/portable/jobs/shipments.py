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

from idempotency import maintenance, reconciliation
from idempotency.core.responses import RecordedResponse
from idempotency.http.requests import build_policy
from idempotency.jobs import Result
from idempotency.operations import (
    PREPARED,
    Done,
    NotSent,
    Operation,
    Outcome,
    Refused,
    Reply,
    Unknown,
    envelope,
)
from idempotency.stores import get_store
from tests.integration.portable.conformance.harness import PATIENCE, Key

#: Each job, and the module that has it.
JOBS = {
    "reclaim_expired_leases": maintenance,
    "resume_operations": maintenance,
    "reconcile_operations": reconciliation,
    "create_partitions": maintenance,
    "drop_expired_partitions": maintenance,
    "prune_expired_keys": maintenance,
}


def run_job(job: str) -> Result:
    result: Result = getattr(JOBS[job], job)()
    return result


class Shipment(Operation):
    """An operation whose outside call answers as a test wants."""

    name = "tests.shipment"
    service = "carrier"
    #: By what the operation is called: what its call does next.
    answers: ClassVar[dict[str, Callable[[], Outcome]]] = {}
    keys: ClassVar[list[str]] = []
    #: The same for its look-up, and what was asked about.
    found: ClassVar[dict[str, Callable[[], Outcome]]] = {}
    asked: ClassVar[list[str]] = []

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        self.keys.append(key)
        return self.answers.get(context["what"], lambda: Done({"id": 1}))()

    def look_up(self, context: dict[str, Any], key: str) -> Outcome:
        self.asked.append(key)
        return self.found.get(context["what"], away)()

    def finalize(self, context: dict[str, Any], outcome: Any) -> Reply:
        if Group.objects.filter(name=context["what"]).exists():
            raise ValueError("it was finalized before")
        Group.objects.create(name=context["what"])
        return Reply(402 if isinstance(outcome, Refused) else 201, outcome.result)

    def withdraw(self, context: dict[str, Any]) -> None:
        Group.objects.create(name=f"no {context['what']}")


class Letter(Shipment):
    """The carrier would carry it twice."""

    name = "tests.letter"
    downstream_dedupes = False


class Parcel(Shipment):
    """The carrier knows it again for an hour."""

    name = "tests.parcel"
    downstream_dedupes_for = timedelta(hours=1)


SHIPPED = RecordedResponse(201, (("Content-Type", "application/json"),), b'{"id":1}')


def named(name: str = "k") -> Key:
    return Key(get_store(), name)


def abandoned(
    what: str = "k", *, attempts: int = 1, kind: type[Operation] = Shipment, lease: float = 0
) -> Key:
    """An operation that was prepared, and whose every attempt came to nothing. (``lease``: seconds
    for which somebody still holds it.)"""
    key = named(what)
    won = key.won(lease=timedelta(seconds=lease))
    kept = envelope(kind(), {"what": what}, build_policy({}), won)
    key.store.record_recovery_point(won, PREPARED, kept)
    for _ in range(attempts - 1):
        assert key.store.take_over(won.key_id, timedelta(0))
    return key


def in_doubt(what: str = "k", *, kind: type[Operation] = Letter) -> Key:
    """An operation whose call may have happened."""
    key = named(what)
    won = key.won()
    key.store.record_recovery_point(
        won, PREPARED, envelope(kind(), {"what": what}, build_policy({}), won)
    )
    key.store.doubt(won, "no answer")
    return key


def away() -> Outcome:
    return Unknown("the carrier is away")


def carried() -> Outcome:
    return Done({"id": 1})


def refused() -> Outcome:
    return Refused({"code": "too_heavy"})


def not_there() -> Outcome:
    return NotSent("the carrier has nothing of it")


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
