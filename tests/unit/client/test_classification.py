"""What is retried, what is an answer, and what ends the call."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotency.client.breaker import Outcome
from idempotency.client.classification import Answer, Problem, Trouble, Verdict, classify
from idempotency.core.errors import CATALOGUE

SUCCESS, ANSWER, RETRY, STOP = Verdict
SAFE, UNSAFE = ["GET", "HEAD", "OPTIONS", "TRACE", "get"], ["POST", "PATCH", "PUT", "DELETE"]


def verdict(end: Answer | Trouble | int, method: str = "POST", *, keyed: bool = True) -> Verdict:
    return classify(_end(end), method=method, keyed=keyed).verdict


def health(end: Answer | Trouble | int) -> Outcome:
    return classify(_end(end), method="POST", keyed=True).health


def _end(end: Answer | Trouble | int) -> Answer | Trouble:
    return Answer(end) if isinstance(end, int) else end


def problem(status: int, code: str | None = None, retry: str | None = None, **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, Problem(code, retry))


# --- The table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 303, 304])
def test_below_400_it_worked(status: int) -> None:
    assert verdict(status) is SUCCESS
    assert health(status) is Outcome.SUCCESS


@pytest.mark.parametrize("status", [402, 404, 409, 410, 422])
def test_a_declined_card_is_an_answer_and_not_a_failure(status: int) -> None:
    """A domain failure is never retried."""
    assert verdict(status) is ANSWER
    assert verdict(status, "GET", keyed=False) is ANSWER


@pytest.mark.parametrize("status", [425, 429, 503])
@pytest.mark.parametrize("method", SAFE + UNSAFE)
@pytest.mark.parametrize("keyed", [True, False])
def test_what_the_server_turned_away_is_retried(status: int, method: str, keyed: bool) -> None:
    assert verdict(status, method, keyed=keyed) is RETRY


@pytest.mark.parametrize("status", [408, 500, 502, 504])
def test_what_may_have_been_done_is_retried_only_if_twice_is_once(status: int) -> None:
    assert verdict(status, "POST", keyed=True) is RETRY
    assert verdict(status, "GET", keyed=False) is RETRY
    for method in UNSAFE:
        assert verdict(status, method, keyed=False) is STOP


@pytest.mark.parametrize("status", [400, 401, 403, 405, 406, 411, 412, 413, 415, 428, 431, 451])
def test_a_request_that_is_wrong_is_not_sent_again(status: int) -> None:
    assert verdict(status) is STOP


@pytest.mark.parametrize("status", [501, 505, 507, 508, 511, 599])
def test_a_server_that_cannot_is_not_asked_again(status: int) -> None:
    assert verdict(status) is STOP


@pytest.mark.parametrize("trouble", [Trouble.CONNECT, Trouble.POOL])
@pytest.mark.parametrize("method", SAFE + UNSAFE)
@pytest.mark.parametrize("keyed", [True, False])
def test_what_was_never_sent_is_retried(trouble: Trouble, method: str, keyed: bool) -> None:
    assert verdict(trouble, method, keyed=keyed) is RETRY
    assert not trouble.may_have_arrived


@pytest.mark.parametrize("trouble", [Trouble.READ, Trouble.WRITE, Trouble.TIMEOUT])
def test_a_post_with_a_key_is_retried_after_a_read_timeout(trouble: Trouble) -> None:
    """Never to retry it wastes the key."""
    for method in UNSAFE:
        assert verdict(trouble, method, keyed=True) is RETRY


@pytest.mark.parametrize("trouble", [Trouble.READ, Trouble.WRITE, Trouble.TIMEOUT])
def test_a_post_without_a_key_is_not_retried_after_a_read_timeout(trouble: Trouble) -> None:
    """The work may have been done: this is how customers are charged twice."""
    assert trouble.may_have_arrived
    for method in UNSAFE:
        assert verdict(trouble, method, keyed=False) is STOP
    for method in SAFE:
        assert verdict(trouble, method, keyed=False) is RETRY


@pytest.mark.parametrize(
    "trouble",
    [Trouble.TLS, Trouble.CANCELLED, Trouble.REFUSED, Trouble.BODY, Trouble.UNKNOWN],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_certificates_cancellations_and_the_unknown_are_never_retried(
    trouble: Trouble, method: str
) -> None:
    assert verdict(trouble, method, keyed=True) is STOP


# --- 409 and 422 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        problem(409, "idempotency_key_in_use", "same_key"),
        problem(409, "idempotency_key_in_use"),
        problem(409, "idempotency_lease_lost", "same_key"),
        problem(409, None, None, Retry_After="2"),
        problem(409, None, None, retry_after="Sun, 06 Nov 1994 08:49:37 GMT"),
    ],
)
def test_a_409_that_says_in_use_is_retried(answer: Answer) -> None:
    assert verdict(answer) is RETRY
    assert verdict(answer, "POST", keyed=False) is ANSWER


@pytest.mark.parametrize(
    "answer",
    [
        Answer(409),
        Answer(409, {"Retry-After": "soon"}),
        Answer(409, {"Retry-After": "-1"}),
        problem(409, "email_taken"),
        problem(422, "idempotency_key_in_use"),
        problem(422, None, None, Retry_After="2"),
    ],
)
def test_a_409_or_422_is_not_retried_blindly(answer: Answer) -> None:
    assert verdict(answer) is ANSWER


# --- Our own problem documents -------------------------------------------------------------------


@pytest.mark.parametrize("hint", ["never", "new_key"])
@pytest.mark.parametrize("status", [400, 409, 410, 422, 429, 500, 503])
def test_a_server_that_says_no_is_believed_whatever_the_status(status: int, hint: str) -> None:
    assert verdict(problem(status, "anything", hint, Retry_After="1")) is STOP


def test_same_key_allows_a_retry_and_does_not_urge_one() -> None:
    assert verdict(problem(503, "outcome_pending", "same_key")) is RETRY
    assert verdict(problem(411, "length_required", "same_key")) is STOP
    assert verdict(problem(404, "not_ours", "same_key")) is ANSWER


@pytest.mark.parametrize("error", CATALOGUE, ids=lambda error: error.code)
def test_every_error_of_the_server_half_is_understood(error) -> None:
    from idempotency.http.problems import PROBLEMS

    status, _title = PROBLEMS[error]
    expected = RETRY if error.retry == "same_key" and status in (409, 503, 504) else STOP
    assert verdict(problem(status, error.code, error.retry)) is expected


def test_a_problem_is_read_from_its_body() -> None:
    body = json.dumps({"status": 409, "code": "idempotency_key_in_use", "retry": "same_key"})
    expected = Problem("idempotency_key_in_use", "same_key")
    for content_type in ["application/problem+json", "Application/Problem+JSON; charset=utf-8"]:
        assert Problem.read(content_type, body.encode()) == expected


@pytest.mark.parametrize("content_type", [None, "", "application/json", "text/html"])
def test_only_a_problem_document_is_read_as_one(content_type: str | None) -> None:
    assert Problem.read(content_type, b'{"code": "x", "retry": "never"}') is None


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b'"code"', b"[" * 60_000])
def test_a_body_that_is_no_problem_is_none(body: bytes) -> None:
    assert Problem.read("application/problem+json", body) is None


def test_members_of_other_types_count_as_absent() -> None:
    body = b'{"code": 7, "retry": ["never"]}'
    assert Problem.read("application/problem+json", body) == Problem(None, None)


def test_an_enormous_body_is_not_read() -> None:
    body = b'{"retry": "never", "detail": "' + b"x" * 100_000 + b'"}'
    assert Problem.read("application/problem+json", body) is None


@given(st.binary())
def test_no_body_raises(body: bytes) -> None:
    Problem.read("application/problem+json", body)


# --- What the breaker learns ---------------------------------------------------------------------


def test_the_breaker_learns_nothing_from_the_callers_errors() -> None:
    assert {health(status) for status in range(400, 500)} == {Outcome.NEUTRAL}
    assert {health(status) for status in range(500, 600)} == {Outcome.FAILURE}


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (Trouble.CONNECT, Outcome.FAILURE),
        (Trouble.TLS, Outcome.FAILURE),
        (Trouble.READ, Outcome.FAILURE),
        (Trouble.WRITE, Outcome.FAILURE),
        (Trouble.TIMEOUT, Outcome.FAILURE),
        (Trouble.POOL, Outcome.NEUTRAL),
        (Trouble.CANCELLED, Outcome.NEUTRAL),
        (Trouble.REFUSED, Outcome.NEUTRAL),
        (Trouble.BODY, Outcome.NEUTRAL),
        (Trouble.UNKNOWN, Outcome.NEUTRAL),
    ],
)
def test_the_breaker_learns_from_what_the_other_side_did(
    trouble: Trouble, expected: Outcome
) -> None:
    assert health(trouble) is expected


@given(
    st.one_of(st.builds(Answer, st.integers(100, 999)), st.sampled_from(Trouble)),
    st.text(),
    st.booleans(),
)
@example(Answer(999), "", False)
def test_every_end_has_a_verdict_and_a_reason(
    end: Answer | Trouble, method: str, keyed: bool
) -> None:
    decision = classify(end, method=method, keyed=keyed)
    assert decision.reason
    if decision.verdict is RETRY and isinstance(end, Trouble) and end.may_have_arrived:
        assert keyed or method.upper() in SAFE


def test_the_reason_names_the_code_of_the_problem() -> None:
    end = problem(409, "idempotency_key_in_use", "same_key")
    assert classify(end, method="POST", keyed=True).reason == "409 idempotency_key_in_use"
    assert classify(Answer(503), method="POST", keyed=True).reason == "503"
