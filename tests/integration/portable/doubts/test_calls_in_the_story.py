"""What an operation's calls leave in the story: a line each, unless they ended at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from idempotency import story
from idempotency.core.states import State
from idempotency.kept import Kept
from idempotency.models import EventKind, IdempotencyKey, KeyEvent
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable.api import Api, statements
from tests.integration.portable.elsewhere import elsewhere

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_service() -> Iterator[None]:
    other_side.reset()
    yield
    other_side.reset()


def lines() -> list[tuple[str, int, str]]:
    return [(it.kind, it.attempt, it.reason) for it in KeyEvent.objects.order_by("pk")]


def test_a_call_that_is_answered_leaves_no_line_but_its_downstream_key_is_known(
    api: Api, each_store: str
) -> None:
    assert api.post("/buy", {}, "k").status_code == 201
    assert lines() == []
    row = IdempotencyKey.objects.get()
    assert (row.state, row.context, row.prepared_attempt) == (State.SUCCEEDED, None, 1)
    assert [story.downstream_key_of(row)] == elsewhere.asked


def test_a_call_without_an_answer_leaves_one(api: Api, each_store: str) -> None:
    elsewhere.script = [elsewhere.unknown]
    assert api.post("/buy", {}, "k").status_code == 503
    assert lines() == [(EventKind.SUSPENDED, 1, "timeout before the effect")]
    row = IdempotencyKey.objects.get()
    assert row.context is not None
    assert Kept.read(row.context).key == story.downstream_key_of(row) == elsewhere.asked[0]
    assert api.post("/buy", {}, "k").status_code == 201
    assert [line[0] for line in lines()] == [EventKind.SUSPENDED, EventKind.TAKEOVER]


def test_a_call_that_was_not_sent_leaves_one_and_the_next_intent_has_a_key_of_its_own(
    api: Api, each_store: str
) -> None:
    elsewhere.script = [elsewhere.not_sent]
    assert api.post("/buy", {}, "k").status_code == 503
    assert lines() == [(EventKind.WITHDRAWN, 1, "connection refused")]
    assert story.downstream_key_of(IdempotencyKey.objects.get()) == ""
    assert api.post("/buy", {}, "k").status_code == 201
    row = IdempotencyKey.objects.get()
    assert row.prepared_attempt == 2
    assert [story.downstream_key_of(row)] == elsewhere.asked[1:]
    assert len(set(elsewhere.asked)) == 2


@pytest.mark.postgresql  # the portable store reads the answer with a second one
def test_a_replay_costs_one_statement_whatever_is_told_of_it(api: Api) -> None:
    api.post("/buy", {}, "k")
    with statements() as sent:
        api.post("/buy", {}, "k")
    assert len([sql for sql in sent if "idempotency_" in sql]) == 1
