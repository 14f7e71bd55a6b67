"""Replays as Redis knows them: noted for nothing, told now and then, and lost without harm."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from idempotency import replays
from idempotency.core.keys import Scope
from tests.integration.portable.api import Api


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> replays.Notes:
    """The notes of a process that has told nothing yet."""
    fresh = replays.Notes()
    monkeypatch.setattr(replays, "_notes", fresh)
    return fresh


def digest(name: str) -> bytes:
    return Scope("POST /x", "acme", name).digest


@pytest.fixture
def key(request: pytest.FixtureRequest) -> bytes:
    """A key of this test alone: what Redis knows outlives a test."""
    return digest(f"{request.node.name} {datetime.now(UTC)}")


def test_the_first_replay_is_told_at_once(key: bytes) -> None:
    assert replays.read(key) is None
    replays.note(key)
    known = replays.read(key)
    assert known is not None
    assert (known.number, known.first) == (1, known.last)
    assert abs(known.last - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_storm_is_told_once_a_second(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(replays.time, "monotonic", lambda: now)
    for _ in range(50):
        replays.note(key)
    known = replays.read(key)
    assert known is not None
    assert known.number == 1
    now += replays.EVERY
    replays.note(digest("another"))
    known = replays.read(key)
    assert known is not None
    assert known.number == 50


def test_it_speaks_sooner_than_it_would_note_without_end(
    notes: replays.Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays.time, "monotonic", lambda: 1000.0)
    told = [notes.add(number.to_bytes(4, "big")) for number in range(replays.MOST + 2)]
    assert [len(noted) for noted in told if noted] == [1, replays.MOST]


def test_without_redis_nothing_is_noted(
    key: bytes, notes: replays.Notes, configure: Callable[..., None]
) -> None:
    configure(REDIS_URL=None)
    replays.note(key)
    assert replays.read(key) is None
    assert not replays.noted()
    assert not notes._noted


def test_a_redis_that_is_away_costs_nobody_his_replay(
    api: Api, configure: Callable[..., None]
) -> None:
    configure(REDIS_URL="redis://127.0.0.1:1/0")
    first, second = (api.post("/required", key="k") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert second["Idempotent-Replayed"] == "true"
    assert not replays.noted()


def test_a_replay_is_one_statement_and_noted(
    api: Api, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(replays.Notes, "add", lambda self, digest: noted.append(digest))
    api.post("/required", key="k")
    assert noted == []
    with CaptureQueriesContext(connection) as queries:
        api.post("/required", key="k")
    assert len(noted) == 1
    ours = [query["sql"] for query in queries if "idempotency" in query["sql"]]
    assert not [sql for sql in ours if sql.startswith(("INSERT", "UPDATE"))]
