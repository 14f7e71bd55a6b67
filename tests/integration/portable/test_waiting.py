"""Contract case 32: a duplicate that is held for the first answer. Case 47: Redis that fails."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.db import connections
from rest_framework.exceptions import ValidationError

from idempotency import waiting
from tests.integration.portable import views
from tests.integration.portable.api import (
    MARKER,
    PATIENCE,
    Api,
    Gate,
    assert_problem,
    assert_replay,
    background,
    key_of,
    together,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def valkey() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        yield client


@pytest.fixture
def without_redis(configure: Any) -> None:
    configure(REDIS_URL=None)


@pytest.fixture
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look but the first comes without a wake-up, within the bounds of the views here."""
    monkeypatch.setattr(waiting, "SPARE_LOOK", 3600.0)


class Waiting:
    """What the duplicates see that wait now."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self.connected: list[bool] = []
        self.kinds: set[type] = set()

    def note(self, watch: Any) -> None:
        self.connected.append(connections["default"].connection is not None)
        self.kinds.add(type(watch))
        self._begun.release()

    def wait_until_one_waits(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE), "nobody waits"


@pytest.fixture
def waiters(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    seen = Waiting()
    for kind in (waiting.RedisWatch, waiting.PollingWatch):
        wait = kind.wait

        def noting(watch: Any, timeout: float, wait: Any = wait) -> None:
            seen.note(watch)
            wait(watch, timeout)

        monkeypatch.setattr(kind, "wait", noting)
    return seen


@contextmanager
def a_duplicate_waits(api: Api, waiters: Waiting) -> Iterator[tuple[Gate, list[Any]]]:
    """Inside, the first request is at the gate and a duplicate waits; then both end."""
    gate, answers = Gate(), []
    views.before_work = gate
    with background(lambda: api.post("/waiting", {"a": 1}, "k")) as first:
        gate.wait_until_reached()
        with background(lambda: api.post("/waiting", {"a": 1}, "k")) as duplicate:
            waiters.wait_until_one_waits()
            yield gate, answers
            views.before_work = None
            gate.open()
            answers += [first.result(), duplicate.result()]


def test_case_32_with_redis_a_duplicate_is_woken_by_the_first_answer(
    api: Api, waiters: Waiting, only_woken: None, each_store: str
) -> None:
    with a_duplicate_waits(api, waiters) as (_, answers):
        pass

    first, duplicate = answers
    assert first.status_code == 201
    assert_replay(duplicate, first)
    assert waiters.kinds == {waiting.RedisWatch}
    assert views.effects() == len(views.calls) == 1


def test_case_32_without_redis_a_duplicate_looks_until_there_is_an_answer(
    api: Api, waiters: Waiting, without_redis: None, each_store: str
) -> None:
    with a_duplicate_waits(api, waiters) as (_, answers):
        waiters.wait_until_one_waits()

    first, duplicate = answers
    assert_replay(duplicate, first)
    assert waiters.kinds == {waiting.PollingWatch}
    assert views.effects() == 1


def test_case_32_a_duplicate_that_subscribes_too_late_finds_the_mark(
    api: Api, only_woken: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    subscribe = waiting.Waiter._subscribe

    def late(waiter: Any, digest: bytes) -> Any:
        views.before_work = None
        gate.open()
        first.result()
        return subscribe(waiter, digest)

    monkeypatch.setattr(waiting.Waiter, "_subscribe", late)
    views.before_work = gate
    with background(lambda: api.post("/waiting", {}, "k")) as first:
        gate.wait_until_reached()
        duplicate = api.post("/waiting", {}, "k")

    assert_replay(duplicate, first.result())


@pytest.mark.parametrize("has_redis", [True, False])
def test_case_32_no_connection_is_held_while_waiting(
    api: Api, waiters: Waiting, has_redis: bool, configure: Any
) -> None:
    if not has_redis:
        configure(REDIS_URL=None)

    with a_duplicate_waits(api, waiters):
        pass

    assert waiters.connected
    assert not any(waiters.connected)


@pytest.mark.postgresql
def test_case_32_ten_duplicates_that_wait_hold_no_session_of_postgresql(
    api: Api, waiters: Waiting, only_woken: None
) -> None:
    def sessions() -> int:
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            )
            number: int = cursor.fetchone()[0]
        return number

    gate = Gate()
    views.before_work = gate
    with background(lambda: api.post("/waiting", {}, "k")) as first:
        gate.wait_until_reached()
        with background(lambda: together([lambda: api.post("/waiting", {}, "k")] * 10)) as many:
            for _ in range(10):
                waiters.wait_until_one_waits()
            # Ours and the first request's.
            until(lambda: sessions() == 2)
            gate.open()
            for answer in many.result():
                assert_replay(answer, first.result())


@pytest.mark.parametrize("has_redis", [True, False])
def test_case_32_at_the_bound_it_is_a_409(
    api: Api, has_redis: bool, configure: Any, each_store: str
) -> None:
    if not has_redis:
        configure(REDIS_URL=None)
    gate = Gate()
    views.before_work = gate

    with background(lambda: api.post("/impatient", {}, "k")) as first:
        gate.wait_until_reached()
        late = api.post("/impatient", {}, "k")
        gate.open()

    assert_problem(late, 409, "idempotency_key_in_use", retry="same_key")
    assert int(late["Retry-After"]) >= 1
    assert first.result().status_code == 201


@pytest.mark.parametrize("has_redis", [True, False])
def test_case_32_every_call_returns_when_all_handlers_fail(
    api: Api, has_redis: bool, configure: Any
) -> None:
    if not has_redis:
        configure(REDIS_URL=None)

    views.behaviour = lambda request: 1 / 0
    answers = together([lambda: api.post("/waiting", {}, "k")] * 6)

    # Each ran its own attempt once and then said so; nobody ran somebody else's.
    assert Counter(answer.status_code for answer in answers) == {500: 6}
    assert len(views.calls) == key_of("k").attempt == 6
    assert views.effects() == 0


def test_case_32_a_duplicate_of_a_released_request_runs_itself(
    api: Api, waiters: Waiting, only_woken: None
) -> None:
    def refuse_once(request: Any) -> Any:
        views.behaviour = None
        raise ValidationError("no")

    views.behaviour = refuse_once
    with a_duplicate_waits(api, waiters) as (_, answers):
        pass

    first, duplicate = answers
    assert first.status_code == 400
    assert duplicate.status_code == 201
    assert MARKER not in duplicate
    assert views.effects() == 1


def test_case_20_a_mismatch_does_not_wait(api: Api, waiters: Waiting) -> None:
    with a_duplicate_waits(api, waiters):
        assert_problem(api.post("/waiting", {"a": 2}, "k"), 422, "idempotency_key_reused")


def test_case_47_a_wake_up_channel_that_is_cut_is_replaced_by_looking(
    api: Api, waiters: Waiting, only_woken: None, valkey: redis.Redis
) -> None:
    with a_duplicate_waits(api, waiters) as (_, answers):
        assert valkey.client_kill_filter(_type="pubsub") >= 1

    first, duplicate = answers
    assert_replay(duplicate, first)
    assert views.effects() == 1


def test_case_47_flushing_redis_changes_nothing(
    api: Api, waiters: Waiting, valkey: redis.Redis
) -> None:
    with a_duplicate_waits(api, waiters) as (_, answers):
        valkey.flushdb()
    valkey.flushdb()

    first, duplicate = answers
    assert_replay(duplicate, first)
    valkey.flushdb()
    assert_replay(api.post("/waiting", {"a": 1}, "k"), first)
    assert views.effects() == 1


class FakeRedis:
    """A port that takes connections and answers each request with the same bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        self.connections = 0
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:  # closed
                return
            self.connections += 1
            self._open.append(caller)
            if self._answer is not None:
                caller.sendall(self._answer)
                caller.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)
        for caller in self._open:
            caller.close()


BROKEN: dict[str, bytes | None] = {
    "slow": None,
    "speaking another language": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an error each time": b"-LOADING Redis is loading the dataset in memory\r\n" * 8,
    "hanging up": b"",
}


@pytest.mark.parametrize("how", BROKEN)
def test_case_47_a_redis_that_is_broken_costs_speed_and_nothing_else(
    api: Api, configure: Any, waiters: Waiting, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LEAVE_ALONE", 3600.0)
    monkeypatch.setattr(waiting, "_waiters", {})
    fake = FakeRedis(BROKEN[how])
    configure(REDIS_URL=fake.url, REDIS_TIMEOUT=0.05)
    try:
        with a_duplicate_waits(api, waiters) as (_, answers):
            pass
        first, duplicate = answers
        assert first.status_code == 201
        assert_replay(duplicate, first)
        asked = fake.connections
        for number in range(5):
            assert api.post("/waiting", {}, f"k{number}").status_code == 201
    finally:
        fake.close()

    # After its first failure it is left alone.
    assert asked >= 1
    assert fake.connections == asked
    assert views.effects() == 6


def test_case_47_a_redis_that_is_down_costs_speed_and_nothing_else(
    api: Api, configure: Any, waiters: Waiting, each_store: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    configure(REDIS_URL=f"redis://127.0.0.1:{port}/0")

    with a_duplicate_waits(api, waiters) as (_, answers):
        pass

    first, duplicate = answers
    assert_replay(duplicate, first)
    assert waiters.kinds == {waiting.PollingWatch}
    assert views.effects() == 1
