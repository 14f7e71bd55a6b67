"""What happened to a key, told in order and in plain words."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from idempotency import story
from idempotency.core.states import State
from idempotency.http.requests import build_policy
from idempotency.inspection import facts_of
from idempotency.kept import envelope
from idempotency.models import EventKind, IdempotencyKey, KeyEvent
from idempotency.replays import Replays
from idempotency.story import Chapter, Material
from payments.operations import CreateCharge

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = (uuid.UUID(int=number) for number in (1, 2))


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def key(state: State, **fields: Any) -> IdempotencyKey:
    values = {
        "attempt": 1,
        "created_at": NOW - minutes(10),
        "failure": "",
        "digest": b"\1" * 32,
        "owner": ONE,
    } | fields
    return IdempotencyKey(pk=1, state=state.value, **values)


def event(kind: str, minutes_ago: float, **fields: Any) -> KeyEvent:
    return KeyEvent(key_id=1, kind=kind, at=NOW - minutes(minutes_ago), **fields)


def tell(row: IdempotencyKey, *events: KeyEvent, **more: Any) -> list[Chapter]:
    return story.story_of(Material(row, facts_of(row, NOW), list(events), **more))


def titles(row: IdempotencyKey, *events: KeyEvent, **more: Any) -> list[str]:
    return [chapter.title for chapter in tell(row, *events, **more)]


def answered(**fields: Any) -> IdempotencyKey:
    values = {"completed_at": NOW - minutes(1), "expires_at": NOW + timedelta(days=1)} | fields
    return key(State.SUCCEEDED, **values)


def test_a_story_is_told_in_order_up_to_the_expiry() -> None:
    told = titles(
        answered(attempt=3),
        event("takeover", 5, attempt=3),
        event("reclaimed", 7, attempt=1),
        event("reused", 10, data={"previous_id": 7}),
    )
    assert told == [
        "First request",
        "Reused after expiry",
        "Reclaimed",
        "Taken over",
        "Answered",
        "Expires",
    ]


def test_an_operation_is_told_with_its_call_and_what_came_of_each_attempt() -> None:
    row = answered(
        attempt=2,
        recovery_point="prepared",
        recovery_point_at=NOW - minutes(9),
        operation="payments.charge",
        prepared_attempt=1,
    )
    chapters = tell(
        row,
        event("suspended", 8, attempt=1, reason="no answer"),
        event("takeover", 7, attempt=2, data={"from": str(ONE), "to": str(TWO)}),
        downstream_key="d0",
    )
    assert [it.title for it in chapters] == [
        "First request",
        "Recovery point “prepared”",
        "Left open",
        "Taken over",
        "Answered",
        "Expires",
    ]
    assert chapters[0].details == (("Owner", str(ONE)),)
    assert chapters[1].text.startswith("Attempt 1 committed its intent and went on to call gateway")
    assert chapters[1].details == (("Operation", "payments.charge"), ("Downstream key", "d0"))
    assert chapters[3].details == (("Owner fenced off", str(ONE)), ("Owner", str(TWO)))
    assert chapters[4].text.startswith("The outside call of attempt 2 was answered")


def test_the_downstream_key_is_shown_only_when_it_is_given() -> None:
    row = key(
        State.IN_DOUBT,
        recovery_point="prepared",
        recovery_point_at=NOW,
        operation="payments.charge",
    )
    assert tell(row)[1].details == (("Operation", "payments.charge"),)


def test_the_downstream_key_is_the_one_that_was_sent() -> None:
    row = key(State.IN_DOUBT, recovery_point="p", operation="payments.charge", prepared_attempt=2)
    lease: Any = SimpleNamespace(key_id=row.pk, attempt=2)
    kept = envelope(CreateCharge(), {}, build_policy({}), lease)
    assert story.downstream_key_of(row) == kept["key"]
    row.context = kept | {"key": "of another secret"}
    assert story.downstream_key_of(row) == "of another secret"
    assert story.downstream_key_of(answered()) == ""
    unknown = key(State.IN_DOUBT, recovery_point="p", operation="no.such", prepared_attempt=1)
    assert story.downstream_key_of(unknown) == ""


def test_what_a_person_did_is_told_with_name_and_record() -> None:
    row = answered(attempt=2, recovery_point="prepared", recovery_point_at=NOW - minutes(9))
    asked, proposed, resolved = tell(
        row,
        event("asked", 5, actor="maria", data={"answer": "done", "record": "gch_1", "because": ""}),
        event("proposed", 4, actor="maria", reason="why", data={"choice": "succeeded"}),
        event(
            "resolved",
            1,
            attempt=2,
            actor="bob",
            reason="I asked too",
            data={"from": str(ONE), "record": "gch_1", "proposed_by": "maria"},
        ),
    )[2:5]
    assert asked.text == "The other side was asked. It has done it, and calls it “gch_1”."
    assert proposed.text == "“succeeded” waits for another person: why"
    assert (resolved.actor, resolved.tone) == ("bob", "good")
    assert resolved.details == (
        ("Owner fenced off", str(ONE)),
        ("The other side's record", "gch_1"),
        ("Proposed by", "maria"),
    )


def test_a_proposal_that_is_rejected_when_all_is_over_comes_after_the_end() -> None:
    told = titles(answered(), event("rejected", 0.5, reason="late"), event("proposed", 2))
    assert told == ["First request", "Proposed", "Answered", "Rejected", "Expires"]


@pytest.mark.parametrize(
    ("event_of", "owner"),
    [
        (event("takeover", 5, attempt=2, data={"from": str(TWO), "to": str(ONE)}), TWO),
        (event("force_failed", 5, attempt=1, data={"from": str(TWO)}), TWO),
        (event("takeover", 5, attempt=3, data={"from": str(TWO), "to": str(ONE)}), ""),
    ],
)
def test_the_first_owner_is_named_where_something_still_has_it(
    event_of: KeyEvent, owner: object
) -> None:
    details = tell(key(State.IN_DOUBT, attempt=2), event_of)[0].details
    assert details == ((("Owner", str(owner)),) if owner else ())


@pytest.mark.parametrize(
    ("replays", "text"),
    [
        (Replays(NOW - minutes(0.5), NOW, 3), "again 3 times"),
        (Replays(NOW, NOW, 1), "again, once"),
        (Replays(NOW - timedelta(days=2), NOW, 9), "the last time"),
    ],
)
def test_the_last_replay_is_told_after_the_answer(replays: Replays, text: str) -> None:
    chapters = tell(answered(), replays=replays)
    assert [it.title for it in chapters] == ["First request", "Answered", "Replayed", "Expires"]
    assert (chapters[2].at, text in chapters[2].text) == (NOW, True)


def test_replays_of_an_earlier_use_of_the_key_are_not_told() -> None:
    before = Replays(NOW - timedelta(days=2), NOW - timedelta(days=1), 9)
    assert "Replayed" not in titles(answered(), replays=before)
    assert "Replayed" not in titles(key(State.IN_DOUBT), replays=before)


def test_it_says_what_it_does_not_know_and_where_that_is() -> None:
    lacks = story.not_recorded(key(State.IN_DOUBT, recovery_point="p"), replays_noted=False)
    assert "An outside call that was answered at once: the ending tells of it." in lacks
    assert "would cost each of them a write" in lacks[-2]
    assert lacks[-1].endswith("key=010101010101.")
    noted = story.not_recorded(key(State.IN_DOUBT), replays_noted=True)
    assert "that Redis was not told of" in noted[-2]


def test_the_story_of_a_stuck_key_ends_where_its_lease_did() -> None:
    row = key(
        State.PROCESSING,
        lease_expires_at=NOW - timedelta(minutes=2),
        failure="timeout in the call",
    )
    last = tell(row)[-1]
    assert (last.title, last.at) == ("Stuck", NOW - timedelta(minutes=2))
    assert "timeout in the call" in last.text


@pytest.mark.parametrize(
    ("row", "ending"),
    [
        (key(State.PROCESSING, lease_expires_at=NOW + timedelta(seconds=5)), ["Running"]),
        (key(State.IN_DOUBT), ["In doubt"]),
        (key(State.FAILED, completed_at=NOW, expires_at=NOW), ["Failed", "Expired"]),
    ],
)
def test_a_story_ends_with_how_the_key_stands(row: IdempotencyKey, ending: list[str]) -> None:
    assert titles(row) == ["First request", *ending]


def test_a_key_ended_for_good_is_not_told_as_a_success() -> None:
    row = key(State.SUCCEEDED, completed_at=NOW, expires_at=NOW + timedelta(1), failure="asked")
    chapters = tell(row)
    assert chapters[1].text == "An operator stored this answer for every retry."
    assert chapters[1].tone == "bad"


@pytest.mark.parametrize("kind", [*EventKind.values, "of_a_later_release"])
def test_every_kind_of_event_can_be_told(kind: str) -> None:
    row = key(State.IN_DOUBT)
    told = event(kind, 3, attempt=2, reason="100% sure", actor="maria", data={})
    chapter = tell(row, told)[1]
    assert chapter.title
    assert chapter.text
    assert chapter.actor == "maria"
