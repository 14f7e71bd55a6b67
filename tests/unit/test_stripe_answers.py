"""What Stripe's answers and objects say about the money."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.answers import Answer
from payments.gateways.stripe_answers import (
    classify,
    first_of,
    is_of,
    is_outcome_of,
    of_intent,
    of_refund,
)

INTENT = {"object": "payment_intent", "id": "pi_1", "status": "succeeded", "amount": 5}
REPLAYED = {"idempotent-replayed": "true"}


def answer(status: int, content: Any, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify(status, named, json.dumps(content).encode(), 7.0)


def failed(status: int, kind: str, code: str | None = None, **headers: str) -> Answer:
    error = {"type": kind, "message": "Why.", **({"code": code} if code else {})}
    return answer(status, {"error": error}, **headers)


def test_an_object_is_a_step_that_was_taken() -> None:
    assert answer(200, INTENT) == Answer(Done(INTENT))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"pi_1"', b"{}", b'{"id": "pi_1"}', b"\xff"])
def test_a_success_that_cannot_be_read_is_asked_for_again(body: bytes) -> None:
    found = classify(200, {}, body)
    assert isinstance(found.outcome, Unknown)
    assert found.passing


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (402, "card_error", "card_declined"),
        (400, "invalid_request_error", "parameter_invalid_integer"),
        (400, "invalid_request_error", "charge_already_refunded"),
        (404, "invalid_request_error", "resource_missing"),
    ],
)
def test_what_stripe_will_never_do_is_refused(status: int, kind: str, code: str) -> None:
    found = failed(status, kind, code).outcome
    assert found == Refused({"status": status, "code": code, "message": "Why."})


def test_the_banks_reason_is_the_code_of_a_decline() -> None:
    error = {"type": "card_error", "code": "card_declined", "decline_code": "lost_card"}
    found = answer(402, {"error": error}).outcome
    assert isinstance(found, Refused)
    assert found.result["code"] == "lost_card"


@pytest.mark.parametrize("status", [401, 403])
def test_an_api_key_that_is_wrong_declines_nobodys_card(status: int) -> None:
    found = failed(status, "invalid_request_error")
    assert isinstance(found.outcome, NotSent)
    assert not found.passing


@pytest.mark.parametrize(
    ("status", "code"), [(429, None), (429, "rate_limit"), (400, "rate_limit")]
)
def test_too_many_requests_are_not_sent(status: int, code: str | None) -> None:
    found = failed(status, "invalid_request_error", code)
    assert found == Answer(found.outcome, True, 7.0)
    assert isinstance(found.outcome, NotSent)
    assert found.outcome.retry_after == 7.0


@pytest.mark.parametrize(
    ("status", "kind", "code", "passing"),
    [
        (409, "invalid_request_error", "idempotency_key_in_use", True),
        (429, "invalid_request_error", "lock_timeout", True),
        (409, "api_error", None, True),
        (400, "idempotency_error", None, False),
        (400, "invalid_request_error", "payment_intent_unexpected_state", False),
        (500, "api_error", None, False),
        (502, "api_error", None, True),
        (503, "api_error", None, True),
        (418, "api_error", None, False),
    ],
)
def test_what_says_nothing_about_the_money_is_unknown(
    status: int, kind: str, code: str | None, passing: bool
) -> None:
    found = failed(status, kind, code)
    assert isinstance(found.outcome, Unknown)
    assert found.passing is passing


@pytest.mark.parametrize("status", [200, 301, 400, 402, 404, 500, 502])
def test_somebody_elses_words_are_no_refusal(status: int) -> None:
    found = classify(status, {}, b"<html>Not found</html>")
    assert isinstance(found.outcome, Unknown)
    assert found.passing


def test_a_stored_error_is_not_asked_for_again() -> None:
    assert not failed(503, "api_error", idempotent_replayed="true").passing


@pytest.mark.parametrize(("told", "passing"), [("true", True), ("false", False)])
def test_stripe_is_believed_about_repeating(told: str, passing: bool) -> None:
    for status in (500, 503):
        assert failed(status, "api_error", stripe_should_retry=told).passing is passing


@pytest.mark.parametrize(
    ("status", "error", "meaning"),
    [
        ("succeeded", None, Done),
        ("requires_payment_method", {"code": "card_declined"}, Refused),
        ("canceled", None, Refused),
        ("processing", None, Unknown),
        ("requires_action", None, Unknown),
        ("requires_confirmation", None, Unknown),
        ("requires_capture", None, Unknown),
        ("requires_payment_method", None, Unknown),
        ("of_the_future", None, Unknown),
        (None, None, Unknown),
    ],
)
def test_only_the_end_of_an_intent_says_something_about_the_money(
    status: str | None, error: Any, meaning: type[Outcome]
) -> None:
    intent = {**INTENT, "status": status, "last_payment_error": error, "client_secret": "of_1"}
    outcome = of_intent(intent)
    assert isinstance(outcome, meaning)
    assert "of_1" not in repr(outcome)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("succeeded", Done),
        ("failed", Refused),
        ("canceled", Refused),
        ("pending", Unknown),
        ("requires_action", Unknown),
    ],
)
def test_only_the_end_of_a_refund_says_something_about_the_money(
    status: str, meaning: type[Outcome]
) -> None:
    outcome = of_refund({"id": "re_1", "status": status, "failure_reason": "expired_or_canceled"})
    assert isinstance(outcome, meaning)


def test_an_object_is_found_by_its_reference_or_its_key() -> None:
    its = {"metadata": {"reference": "ch_1", "idempotency_key": "k1"}}
    assert is_of("ch_1", "")(its)
    assert is_of("ch_2", "k1")(its)
    assert not is_of("ch_2", "k2")(its)
    assert not is_of("ch_2", "")({"metadata": {}})
    assert not is_of("ch_2", "")({"metadata": None})


@pytest.mark.parametrize(
    "other", [{"amount": 6}, {"currency": "usd"}, {"metadata": {"reference": "ch_2"}}]
)
def test_another_amount_under_the_same_names_is_another_request(other: dict[str, Any]) -> None:
    order = {"amount": 5, "currency": "eur", "metadata": {"reference": "ch_1"}, "confirm": True}
    its = {"object": "payment_intent", **order}
    assert is_outcome_of(order)(its)
    assert not is_outcome_of(order)({**its, **other})


def test_of_several_the_first_that_moved_money_counts() -> None:
    done, later = Done({"id": "pi_1"}), Done({"id": "pi_2"})
    refused, unknown = Refused({}), Unknown("")
    assert first_of([refused, unknown, done, later]) is done
    assert first_of([refused, unknown]) is unknown
    assert first_of([refused]) is refused
    assert isinstance(first_of([]), NotSent)
