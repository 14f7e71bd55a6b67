"""A client of the suite's views, and threads that meet at a known point instead of sleeping."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from idempotency.models import IdempotencyKey
from idempotency.stores import clock
from tests.integration.portable import views

T = TypeVar("T")

#: Seconds until a thread that does not come is given up.
PATIENCE = 20.0
JSON = "application/json"
PROBLEM = "application/problem+json"
MARKER = "Idempotent-Replayed"


class Api:
    """Sends requests as a caller would: a handler that raises is a 500 and not an exception."""

    def __init__(self, client: Client | None = None) -> None:
        self._client = client

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        *,
        content_type: str = JSON,
        **headers: str,
    ) -> Any:
        """``body``: bytes as they are, anything else as JSON. ``headers``: ``Accept="…"``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["Idempotency-Key"] = key
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        # A client for each request, unless one is signed in: threads share this object.
        client = self._client or Client(raise_request_exception=False)
        return client.generic(method, path, data, content_type, headers=named)

    def post(self, path: str, body: Any = None, key: str | None = None, **options: Any) -> Any:
        return self.send("POST", path, body, key, **options)


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> None:
        self._reached.set()
        assert self._open.wait(PATIENCE), "the gate was never opened"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def background(call: Callable[[], T]) -> Iterator[Future[T]]:
    """Run a call in a thread of its own, with a connection of its own."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread.submit(_and_disconnect, call)


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Start the calls at the same moment and return what each returned."""
    barrier = threading.Barrier(len(calls), timeout=PATIENCE)

    def start(call: Callable[[], T]) -> T:
        barrier.wait()
        return _and_disconnect(call)

    with ThreadPoolExecutor(max_workers=len(calls)) as threads:
        return [future.result() for future in [threads.submit(start, call) for call in calls]]


def until(reached: Callable[[], bool]) -> None:
    """Look until it is so: for what only another process knows."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, "it never was so"


def _and_disconnect(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        connections.close_all()


def terminate(pid: int) -> None:
    """End a session of PostgreSQL and wait until it is gone."""

    def end() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            assert cursor.fetchone() == (True,)

    with background(end) as ended:
        ended.result()


@contextmanager
def listening(signal: Any, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL that this thread sends inside the block, without BEGIN, COMMIT and savepoints."""
    sent: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield sent
    texts = [query["sql"].removeprefix("BEGIN; ") for query in captured.captured_queries]
    sent += [
        text
        for text in texts
        if not text.startswith(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"))
    ]


def key_of(name: str) -> IdempotencyKey:
    return IdempotencyKey.objects.get(key=name)


def keys() -> int:
    return IdempotencyKey.objects.count()


class Killed(BaseException):
    """As if the process ended here: nothing above catches it."""


def kill(*_: Any, **__: Any) -> None:
    raise Killed


def abandon(api: Api, path: str, body: Any, key: str) -> None:
    """Leave a key as a killed process leaves it: claimed, the work rolled back, nobody there."""
    views.before_work = kill
    with pytest.raises(Killed):
        api.post(path, body, key)
    views.reset()


def end_lease(name: str) -> None:
    """As if the owner had been silent for longer than its lease."""
    running = IdempotencyKey.objects.filter(key=name, state="processing")
    assert running.update(lease_expires_at=clock.now() - timedelta(seconds=1))


def end_ttl(name: str) -> None:
    """As if the key's time were up."""
    settled = IdempotencyKey.objects.filter(key=name, expires_at__isnull=False)
    assert settled.update(expires_at=clock.now() - timedelta(seconds=1))


def assert_problem(
    response: Any, status: int, code: str, retry: str | None = None
) -> dict[str, Any]:
    """The response is a problem document of ours; returns it."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["Content-Type"] == PROBLEM
    document: dict[str, Any] = json.loads(response.content)
    assert document["code"] == code
    assert document["status"] == status
    assert MARKER not in response.headers
    if retry is not None:
        assert document["retry"] == retry
    return document


def assert_replay(again: Any, first: Any) -> None:
    """The same answer, marked; and the first one was not."""
    assert again.headers.get(MARKER) == "true", (again.status_code, again.content)
    assert MARKER not in first.headers
    assert (again.status_code, again.content) == (first.status_code, first.content)
