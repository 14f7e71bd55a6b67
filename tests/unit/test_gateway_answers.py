"""How an answer of the gateway is read, and what a call is allowed to cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idempotency.operations import Done, NotSent, Refused, Unknown
from payments.gateways.answers import classify
from payments.gateways.calling import BACKOFF_BASE, BACKOFF_CAP
from payments.gateways.http import HttpGateway
from payments.gateways.readings import RETRY_AFTER_LIMIT


def error(**fields: Any) -> bytes:
    return json.dumps({"error": {"code": "c", "message": "m", **fields}}).encode()


@pytest.mark.parametrize("status", [200, 201])
def test_success_with_a_record_is_done(status: int) -> None:
    answer = classify(status, b'{"id": "gch_1", "amount": 5}')
    assert answer.outcome == Done({"id": "gch_1", "amount": 5})


@pytest.mark.parametrize("status", [400, 402, 422])
@pytest.mark.parametrize("processed", [{}, {"processed": False}, {"processed": True}])
def test_refusal_is_final_and_keeps_its_code(status: int, processed: dict[str, bool]) -> None:
    answer = classify(status, error(**processed))
    assert answer.outcome == Refused({"status": status, "code": "c", "message": "m"})


def test_key_that_holds_another_request_says_nothing_about_that_request() -> None:
    answer = classify(422, error(code="idempotency_key_reused"))
    assert isinstance(answer.outcome, Unknown)
    assert not answer.passing  # the same question gets the same answer


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_statement_that_nothing_was_processed_is_not_sent(status: int) -> None:
    answer = classify(status, error(processed=False))
    assert isinstance(answer.outcome, NotSent)
    assert answer.passing


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "body",
    [
        error(),
        error(processed=True),
        error(processed="false"),
        error(processed=0),
        error(processed=None),
        b'{"processed": false}',
        b'{"error": "processed: false"}',
        b"<html>Bad gateway</html>",
        b"",
    ],
)
def test_failure_without_that_statement_is_unknown(status: int, body: bytes) -> None:
    answer = classify(status, body)
    assert isinstance(answer.outcome, Unknown)
    assert answer.passing


@pytest.mark.parametrize("status", [200, 201, 202, 400, 402, 422])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"id": 7}', b'{"error": []}', b"[" * 100_000],
)
def test_answer_that_cannot_be_read_is_unknown_and_may_be_asked_again(
    status: int, body: bytes
) -> None:
    answer = classify(status, body)
    assert isinstance(answer.outcome, Unknown)
    assert answer.passing


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405, 501])
def test_any_other_answer_is_unknown_and_not_worth_repeating(status: int) -> None:
    answer = classify(status, error())
    assert isinstance(answer.outcome, Unknown)
    assert not answer.passing


def test_retry_after_is_handed_on() -> None:
    answer = classify(503, error(processed=False), 3600.0)
    assert answer.retry_after == 3600
    assert isinstance(answer.outcome, NotSent)
    assert answer.outcome.retry_after == 3600


def test_longest_call_covers_every_attempt_and_every_wait() -> None:
    gateway = HttpGateway("http://127.0.0.1:1", timeout=5.0, attempts=3)
    assert gateway.longest_call == 3 * 5.0 + 2 * (RETRY_AFTER_LIMIT + BACKOFF_BASE)
    assert BACKOFF_CAP <= RETRY_AFTER_LIMIT + BACKOFF_BASE
    assert HttpGateway("http://127.0.0.1:1", timeout=2.0, attempts=1).longest_call == 2.0


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("127.0.0.1:9000", {}),
        ("", {}),
        ("ftp://127.0.0.1", {}),
        ("http://127.0.0.1:1", {"attempts": 0}),
        ("http://127.0.0.1:1", {"timeout": 0}),
    ],
)
def test_impossible_gateway_is_refused_when_it_is_made(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"URL|attempts"):
        HttpGateway(url, **options)


@pytest.mark.parametrize("its_id", ["", "g" * 256, "g\0"])
def test_a_success_whose_id_cannot_be_kept_is_a_damaged_answer(its_id: str) -> None:
    answer = classify(201, json.dumps({"id": its_id}).encode())
    assert isinstance(answer.outcome, Unknown)
    assert answer.passing
