"""What the conformance suite says to a store, and how it looks at what the store wrote."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import connection, connections

from idempotency.core.decisions import Claim, Decision, Lease, Won
from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import clock
from idempotency.stores.base import Store

T = TypeVar("T")

#: A whole second, so that every database can hold it exactly; today, so that its day exists.
NOW = datetime.now(UTC).replace(microsecond=0)
LEASE = timedelta(seconds=30)
TTL = timedelta(hours=24)
ANSWER = RecordedResponse(201, (("Content-Type", "application/json"), ("ETag", '"1"')), b'{"id":1}')
REQUEST, OTHER_REQUEST = b"1" * 32, b"2" * 32
#: How long a thread may take before the test gives up on it.
PATIENCE = 30.0


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Key:
    """One key of one store."""

    def __init__(self, store: Store, key: str = "k", tenant: str = "acme") -> None:
        self.store = store
        self.scope = Scope("POST /things", tenant, key)

    def claim(self, request: bytes = REQUEST, *, lease: Any = LEASE, version: int = 1) -> Decision:
        return self.store.claim(Claim(self.scope, request, version, uuid.uuid4(), lease))

    def won(self, request: bytes = REQUEST, **options: Any) -> Lease:
        decision = self.claim(request, **options)
        assert isinstance(decision, Won), decision
        return decision.lease

    def completed(self, answer: RecordedResponse = ANSWER, ttl: timedelta = TTL) -> Lease:
        lease = self.won()
        self.store.complete(lease, answer, ttl)
        return lease

    def prepared(self, lease: timedelta = LEASE) -> Lease:
        """An operation past its recovery point."""
        won = self.won(lease=lease)
        self.store.record_recovery_point(won, "prepared", {"charge": 7})
        return won

    @property
    def row(self) -> IdempotencyKey:
        return IdempotencyKey.objects.using(self.store.using).get(digest=self.scope.digest)

    @property
    def exists(self) -> bool:
        keys = IdempotencyKey.objects.using(self.store.using)
        return keys.filter(digest=self.scope.digest).exists()

    def events(self) -> list[KeyEvent]:
        return list(KeyEvent.objects.using(self.store.using).order_by("pk"))

    def responses(self) -> list[StoredResponse]:
        return list(StoredResponse.objects.using(self.store.using).order_by("pk"))


def nothing(key: Key) -> None:
    assert not key.exists


def failed(key: Key) -> None:
    key.store.fail(key.won(), "boom", TTL)


def over(key: Key) -> None:
    """Its lease is over."""
    key.won(lease=timedelta(0))


def expired(key: Key) -> None:
    key.completed(ttl=timedelta(0))


#: Every way a key can stand when a claim wins it.
CLAIMABLE = [nothing, failed, over, expired]


def values_of(row: IdempotencyKey) -> dict[str, Any]:
    """All columns of a row, to compare it with itself later."""
    fields = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    return {name: bytes(v) if isinstance(v, memoryview) else v for name, v in fields.items()}


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """Freeze the stores' clock."""
    before = clock.frozen()
    clock.freeze(moment)
    try:
        yield
    finally:
        clock.freeze(before)


def together(*works: Callable[[], T]) -> list[T]:
    """Run each in a thread of its own, all from one barrier on; their results in order."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], T]) -> T:
        try:
            barrier.wait(PATIENCE)
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=len(works)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, work) for work in works]]


def elsewhere(work: Callable[[], T]) -> T:
    """Run in another thread, so on another connection, and wait for it."""
    return together(work)[0]


@contextmanager
def interrupted(using: str, work: Callable[[], Any], *, after: int = 1) -> Iterator[list[str]]:
    """Between this connection's ``after``-th statement and the next, let somebody else do ``work``.

    Yields the statements, to show where the pause was.
    """
    statements: list[str] = []

    def pause(execute: Any, sql: str, params: Sequence[Any], many: bool, context: Any) -> Any:
        if len(statements) == after:
            statements.append("-- somebody else")
            elsewhere(work)
        statements.append(sql)
        return execute(sql, params, many, context)

    with connections[using].execute_wrapper(pause):
        yield statements
    assert "-- somebody else" in statements, statements


class _Behind:
    """Work in another session that is going to wait for a lock of this one."""

    def __init__(self, work: Callable[[], Any], pool: ThreadPoolExecutor) -> None:
        self._work, self._pool = work, pool
        self._future: Future[Any]

    def start(self) -> None:
        """Start the work and return once its session waits for a lock that is held."""
        pid: Future[int] = Future()

        def run() -> Any:
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid()")
                    pid.set_result(cursor.fetchone()[0])
                return self._work()
            finally:
                connections.close_all()

        self._future = self._pool.submit(run)
        deadline = time.monotonic() + PATIENCE
        with connection.cursor() as cursor:
            while time.monotonic() < deadline:
                cursor.execute(
                    "SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid.result(PATIENCE)]
                )
                if cursor.fetchone() == (True,):
                    return
        raise AssertionError("nothing waited for a lock")

    @property
    def value(self) -> Any:
        return self._future.result(PATIENCE)


@contextmanager
def behind_a_lock(work: Callable[[], Any]) -> Iterator[_Behind]:
    """``start`` what has to wait for this session's transaction; its ``value`` is there later."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield _Behind(work, pool)
