"""What a view knows to be in the way of its work: a new key is turned away for one read."""

from __future__ import annotations

import pytest

from idempotency.client import BulkheadFull
from tests.integration.portable import views
from tests.integration.portable.api import (
    Api,
    abandon,
    assert_problem,
    assert_replay,
    end_lease,
    key_of,
    keys,
    statements,
)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[BulkheadFull]:
    """What is in the way of things; nothing while it is empty."""
    known: list[BulkheadFull] = []
    monkeypatch.setattr(
        views.ThingView, "get_idempotency_obstacle", lambda view: known[0] if known else None
    )
    return known


def put_in_the_way(full: list[BulkheadFull]) -> None:
    full.append(BulkheadFull(retry_after=3.0))


def test_a_new_key_is_refused_for_one_read_and_used_again(
    api: Api, full: list[BulkheadFull], each_store: str
) -> None:
    put_in_the_way(full)
    with statements() as sent:
        refused = api.post("/things", {}, "k")

    assert_problem(refused, 503, "downstream_unavailable", retry="same_key")
    assert refused["Retry-After"] == "3"
    assert [statement.split()[0] for statement in sent] == ["SELECT"]
    assert (keys(), views.calls) == (0, [])

    full.clear()
    assert api.post("/things", {}, "k").status_code == 201


def test_a_stored_answer_and_a_mismatch_are_said_as_ever(
    api: Api, full: list[BulkheadFull], each_store: str
) -> None:
    first = api.post("/things", {}, "k")
    put_in_the_way(full)

    assert_replay(api.post("/things", {}, "k"), first)
    assert_problem(api.post("/things", {"other": 1}, "k"), 422, "idempotency_key_reused")


def test_a_running_key_is_in_use_and_one_that_ran_before_runs_on(
    api: Api, full: list[BulkheadFull], each_store: str
) -> None:
    abandon(api, "/things", {}, "running")
    abandon(api, "/things", {}, "over")
    end_lease("over")
    put_in_the_way(full)

    assert_problem(api.post("/things", {}, "running"), 409, "idempotency_key_in_use")
    # "Nothing happened" would be a guess here; only the work itself can say how far it had come.
    assert api.post("/things", {}, "over").status_code == 201
    assert key_of("over").attempt == 2


def test_a_request_without_a_key_is_not_asked_about(api: Api, full: list[BulkheadFull]) -> None:
    put_in_the_way(full)

    assert api.post("/things", {}).status_code == 201
