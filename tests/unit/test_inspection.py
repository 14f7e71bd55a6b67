"""The plain words about a key, for every state it can be in."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from idempotency import inspection
from idempotency.core.states import State
from idempotency.inspection import KeyFacts, Repeatable, Risk
from idempotency.models import EventKind, IdempotencyKey, KeyEvent

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (KeyFacts(State.SUCCEEDED, 1, status=201), "gets the stored 201"),
        (KeyFacts(State.SUCCEEDED, 1, status=402), "gets the stored 402"),
        (KeyFacts(State.SUCCEEDED, 1, status=410, ended=True), "An operator ended this request."),
        (KeyFacts(State.SUCCEEDED, 1, status=200, body_kept=False), "409 response_not_stored"),
        (KeyFacts(State.SUCCEEDED, 1, status=None), "409 response_not_stored"),
        (KeyFacts(State.SUCCEEDED, 1, status=201, expired=True), "runs as a new one"),
        (KeyFacts(State.FAILED, 2), "runs it again, as attempt 3"),
        (KeyFacts(State.FAILED, 1, expired=True), "runs as a new one"),
        (KeyFacts(State.FAILED, 1, recovery_point="prepared"), "under the same downstream key"),
        (
            KeyFacts(State.FAILED, 1, recovery_point="prepared", repeatable=Repeatable.NO),
            "asks the other side",
        ),
        (
            KeyFacts(State.FAILED, 1, recovery_point="prepared", repeatable=Repeatable.UNKNOWN),
            "cannot resume after “prepared”",
        ),
        (KeyFacts(State.PROCESSING, 1), "409 idempotency_key_in_use"),
        (KeyFacts(State.PROCESSING, 1, recovery_point="prepared"), "409 idempotency_key_in_use"),
        (KeyFacts(State.PROCESSING, 4, lease_over=True), "runs it again, as attempt 5"),
        (
            KeyFacts(State.PROCESSING, 1, lease_over=True, recovery_point="prepared"),
            "The recovery job does the same without the client.",
        ),
        (
            KeyFacts(
                State.PROCESSING,
                1,
                lease_over=True,
                recovery_point="prepared",
                repeatable=Repeatable.NO,
            ),
            "409 outcome_in_doubt",
        ),
        (KeyFacts(State.IN_DOUBT, 1, recovery_point="prepared"), "409 outcome_in_doubt until"),
    ],
)
def test_it_says_what_a_retry_gets(facts: KeyFacts, expected: str) -> None:
    assert expected in inspection.retry_now(facts)


def every_combination() -> list[KeyFacts]:
    states_and_leases = [(State.PROCESSING, False), (State.PROCESSING, True)]
    states_and_leases += [(state, False) for state in State if state is not State.PROCESSING]
    return [
        KeyFacts(
            state,
            1,
            lease_over=over,
            expired=expired and state in (State.SUCCEEDED, State.FAILED),
            recovery_point=point,
            repeatable=repeatable,
            status=status if state is State.SUCCEEDED else None,
        )
        for (state, over), expired, point, repeatable, status in itertools.product(
            states_and_leases, (False, True), ("", "prepared"), Repeatable, (None, 201)
        )
    ]


@pytest.mark.parametrize("facts", every_combination())
def test_every_combination_of_facts_has_whole_words(facts: KeyFacts) -> None:
    risk, risk_text = inspection.risk_of_force_fail(facts)
    for text in (inspection.retry_now(facts), risk_text):
        assert text.endswith(".")
        assert "%" not in text
    assert isinstance(risk, Risk)


def test_another_request_is_refused_until_the_key_expires() -> None:
    assert "422" in inspection.other_request(KeyFacts(State.SUCCEEDED, 1, status=201))
    assert inspection.other_request(KeyFacts(State.SUCCEEDED, 1, status=201, expired=True)) == ""


@pytest.mark.parametrize(
    ("facts", "risk"),
    [
        (KeyFacts(State.PROCESSING, 1), Risk.WORK),
        (KeyFacts(State.PROCESSING, 1, lease_over=True), Risk.NONE),
        (KeyFacts(State.PROCESSING, 1, recovery_point="prepared"), Risk.EFFECT),
        (KeyFacts(State.PROCESSING, 1, lease_over=True, recovery_point="p"), Risk.EFFECT),
        (KeyFacts(State.IN_DOUBT, 1), Risk.EFFECT),
    ],
)
def test_ending_an_attempt_is_risky_where_an_outside_effect_is_possible(
    facts: KeyFacts, risk: Risk
) -> None:
    assert inspection.risk_of_force_fail(facts)[0] is risk


@pytest.mark.parametrize(
    ("point", "repeatable", "expected"),
    [
        ("", Repeatable.YES, False),
        ("prepared", Repeatable.YES, False),
        ("prepared", Repeatable.NO, True),
        ("prepared", Repeatable.UNKNOWN, True),
    ],
)
def test_freeing_does_not_help_where_the_call_cannot_be_repeated(
    point: str, repeatable: Repeatable, expected: bool
) -> None:
    facts = KeyFacts(State.IN_DOUBT, 1, recovery_point=point, repeatable=repeatable)
    assert inspection.freed_leads_to_doubt(facts) is expected


def key(state: State, **fields: Any) -> IdempotencyKey:
    values = {"attempt": 1, "created_at": NOW - timedelta(minutes=10), "failure": ""} | fields
    return IdempotencyKey(pk=1, state=state.value, **values)


def event(kind: str, minutes_ago: int, **fields: Any) -> KeyEvent:
    return KeyEvent(key_id=1, kind=kind, at=NOW - timedelta(minutes=minutes_ago), **fields)


def titles(row: IdempotencyKey, *events: KeyEvent) -> list[str]:
    facts = inspection.facts_of(row, NOW)
    return [chapter.title for chapter in inspection.story_of(row, facts, events)]


def test_a_story_is_told_in_order_up_to_the_expiry() -> None:
    row = key(
        State.SUCCEEDED,
        attempt=3,
        completed_at=NOW - timedelta(minutes=1),
        expires_at=NOW + timedelta(hours=24),
    )
    told = titles(
        row,
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


def test_the_story_of_a_stuck_key_ends_where_its_lease_did() -> None:
    row = key(
        State.PROCESSING,
        lease_expires_at=NOW - timedelta(minutes=2),
        failure="timeout in the call",
    )
    facts = inspection.facts_of(row, NOW)
    last = inspection.story_of(row, facts, [])[-1]
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
    chapters = inspection.story_of(row, inspection.facts_of(row, NOW), [])
    assert chapters[1].text == "An operator stored this answer for every retry."
    assert chapters[1].tone == "bad"


@pytest.mark.parametrize("kind", [*EventKind.values, "of_a_later_release"])
def test_every_kind_of_event_can_be_told(kind: str) -> None:
    row = key(State.IN_DOUBT)
    told = event(kind, 3, attempt=2, reason="100% sure", actor="maria", data={})
    chapter = inspection.story_of(row, inspection.facts_of(row, NOW), [told])[1]
    assert chapter.title
    assert chapter.text
    assert chapter.actor == "maria"


def test_an_operation_that_this_process_does_not_know_is_not_called_repeatable() -> None:
    context = {"operation": "nobody.knows", "ttl": 1, "context": {}}
    row = key(State.IN_DOUBT, recovery_point="prepared", context=context)
    assert inspection.facts_of(row, NOW).repeatable is Repeatable.UNKNOWN
    assert inspection.operation_of(row) == "nobody.knows"
