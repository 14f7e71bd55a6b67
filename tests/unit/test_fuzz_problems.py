"""Every error, with any text, is a problem document (RFC 9457) with the documented members."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import translation
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idempotency.core import errors
from idempotency.http.problems import problem_response
from tests.counts import repeats

many = settings(max_examples=repeats(20_000, 60), deadline=None)

KINDS = [*errors.CATALOGUE, errors.EndedUnsettled]
MEMBERS = {
    "type": str,
    "title": str,
    "status": int,
    "detail": str,
    "code": str,
    "retry": str,
}
any_text = st.text(max_size=80) | st.text(st.characters(codec=None), max_size=20)


def answer(error: errors.IdempotencyError, host: str | None) -> tuple[HttpResponse, dict[str, Any]]:
    request = RequestFactory().post("/v1/charges", headers={"Host": host}) if host else None
    response = problem_response(error, request)
    return response, json.loads(response.content.decode("utf-8"))


@many
@given(
    st.sampled_from(KINDS),
    any_text,
    st.none() | st.floats(allow_nan=False, allow_infinity=False, max_value=1e9),
    st.sampled_from([None, "localhost", "testserver"]),
    st.sampled_from(["en", "de"]),
)
@example(errors.KeyInUse, "\r\nSet-Cookie: x", 0.0, "localhost", "en")
@example(errors.KeyInUse, "\ud800", -1.0, None, "de")
def test_an_error_is_a_problem_document(
    kind: type[errors.IdempotencyError],
    detail: str,
    retry_after: float | None,
    host: str | None,
    language: str,
) -> None:
    error = kind(detail)
    error.retry_after = retry_after
    with translation.override(language):
        response, document = answer(error, host)
    assert response["Content-Type"] == "application/problem+json"
    assert response["Cache-Control"] == "no-store"
    assert {name: type(value) for name, value in document.items()} == MEMBERS
    assert document["detail"] == (detail or kind.default_detail)
    assert document["status"] == response.status_code
    assert 400 <= response.status_code <= 599
    assert (document["code"], document["retry"]) == (kind.code, kind.retry)
    assert document["retry"] in ("same_key", "new_key", "never")
    assert document["type"].endswith(f"/{kind.code}/")
    check_retry_after(response, kind)


def check_retry_after(response: HttpResponse, kind: type[errors.IdempotencyError]) -> None:
    """There exactly where a client may come again with the same key, and a whole number."""
    wanted = response.status_code in (409, 503) and kind.retry == "same_key"
    assert response.has_header("Retry-After") == wanted
    if wanted:
        assert response["Retry-After"].isdecimal()
        assert int(response["Retry-After"]) >= 1


@many
@given(st.none() | any_text)
def test_an_answer_that_was_not_kept_names_any_resource(resource: str | None) -> None:
    _, document = answer(errors.ResponseNotStored(resource=resource), None)
    named = MEMBERS | ({"resource": str} if resource else {})
    assert {name: type(value) for name, value in document.items()} == named
    assert not resource or document["resource"] == resource
