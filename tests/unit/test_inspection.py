"""The plain words about a key, for every state it can be in."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from idempotency import inspection
from idempotency.conf import settings
from idempotency.core.states import State
from idempotency.definitions import Operation
from idempotency.inspection import KeyFacts, Repeatable, Risk
from idempotency.kept import is_repeatable
from idempotency.models import IdempotencyKey

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


def test_an_operation_that_this_process_does_not_know_is_not_called_repeatable() -> None:
    context = {"operation": "nobody.knows", "ttl": 1, "context": {}}
    row = key(State.IN_DOUBT, recovery_point="prepared", context=context)
    assert inspection.facts_of(row, NOW).repeatable is Repeatable.UNKNOWN
    assert inspection.operation_of(row) == "nobody.knows"


class Hourly(Operation):
    name = "inspected.hourly"
    downstream_dedupes_for = timedelta(hours=1)


@pytest.mark.parametrize(
    ("left", "expected"),
    [(timedelta(0), Repeatable.NO), (timedelta(milliseconds=1), Repeatable.YES)],
)
def test_a_call_is_said_to_be_repeatable_as_long_as_it_would_be_made_again(
    left: timedelta, expected: Repeatable
) -> None:
    """Near the end of the window it is not: the call may take as long as a lease."""
    passed = NOW - timedelta(hours=1) + settings().lease + left
    about = {"operation": Hourly.name, "recovery_point": "prepared", "recovery_point_at": passed}
    row = key(State.FAILED, created_at=passed, **about)
    assert inspection.facts_of(row, NOW).repeatable is expected
    assert is_repeatable(Hourly, NOW - passed) is (expected is Repeatable.YES)


def test_the_operation_of_a_settled_key_is_still_known() -> None:
    row = key(State.SUCCEEDED, recovery_point="prepared", operation="payments.charge")
    assert inspection.operation_of(row) == "payments.charge"
    withdrawn = key(State.FAILED, operation="payments.charge")
    assert inspection.operation_of(withdrawn) == ""
