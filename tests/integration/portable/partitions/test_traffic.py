"""Retiring days is in nobody's way."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction
from psycopg.errors import Diagnostic

from idempotency import maintenance, partitions
from idempotency.core.decisions import Replay
from idempotency.partitions import RESPONSES, Action, Step
from idempotency.stores.base import Store
from tests.integration.portable.conformance.harness import (
    ANSWER,
    PATIENCE,
    TTL,
    Key,
    behind_a_lock,
    together,
)
from tests.integration.portable.partitions.days import (
    OLD,
    a_reader,
    create,
    exists,
    run,
)

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


def test_case_54_dropping_days_blocks_no_claim(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads claim, complete and replay while a drop waits for a reader.

    Whatever queued behind the drop would wait as long as the drop, for the reader, and fail at its
    own lock timeout.
    """
    monkeypatch.setattr(partitions, "JOB_LOCK_TIMEOUT", timedelta(seconds=PATIENCE))
    create(RESPONSES, OLD)
    longest: list[float] = []

    with behind_a_lock(maintenance.drop_expired_partitions) as drop, a_reader(RESPONSES):
        drop.start()
        together(*[partial(_pay, store, number, longest) for number in range(8)])
        assert exists(Step(Action.DROP, RESPONSES, OLD).table)

    assert drop.value.done == 1
    assert not exists(Step(Action.DROP, RESPONSES, OLD).table)
    with capsys.disabled():
        print(f"\nlongest claim, completion and replay beside a drop: {max(longest) * 1000:.0f} ms")


def test_a_replay_does_not_plan_its_look_for_the_answer_anew(store: Store) -> None:
    """A generic plan has all days in it and leaves out the others when it runs, and says so."""
    key = Key(store)
    key.completed()
    notices: list[str] = []

    def note(notice: Diagnostic) -> None:
        notices.append(notice.message_primary or "")

    connection.connection.add_notice_handler(note)
    run("LOAD 'auto_explain'")
    run("SET auto_explain.log_level = notice")
    run("SET auto_explain.log_nested_statements = on")
    run("SET auto_explain.log_min_duration = 0")
    try:
        assert key.claim() == Replay(ANSWER)
    finally:
        connection.close()

    (plan,) = [notice for notice in notices if "SELECT r.status" in notice]
    assert "Subplans Removed" in plan


def _pay(store: Store, number: int, longest: list[float]) -> None:
    run("SET lock_timeout = '2s'")
    for turn in range(25):
        key = Key(store, f"{number}/{turn}")
        begun = time.perf_counter()
        with transaction.atomic():
            store.complete(key.won(), ANSWER, TTL)
        assert key.claim() == Replay(ANSWER)
        longest.append(time.perf_counter() - begun)
