"""A body that was cut off runs nothing: the beginning of a form is mostly a form."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.test import Client
from django.test.client import BOUNDARY, encode_multipart

from tests.integration.portable import views
from tests.integration.portable.api import Api, assert_problem, assert_replay, keys

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])
FORM = "application/x-www-form-urlencoded"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
JSON = "application/json"

BODIES = {
    "form": (FORM, b"currency=EUR&amount=1000"),
    "multipart": (MULTIPART, encode_multipart(BOUNDARY, {"currency": "EUR", "amount": "1000"})),
    "JSON": (JSON, b'{"amount": 1000}      '),
    "other": ("text/plain", b"a thousand"),
}
EACH_BODY = pytest.mark.parametrize(("content_type", "body"), BODIES.values(), ids=BODIES)


def send(path: str, content_type: str, sent: bytes, announced: int) -> Any:
    """A request whose client left after the bytes that were sent."""
    return Client().generic(
        "POST",
        path,
        b"",
        content_type,
        headers={"Idempotency-Key": "cut"},
        **{"wsgi.input": io.BytesIO(sent), "CONTENT_LENGTH": str(announced)},
        CONTENT_TYPE=content_type,
    )


@BOTH_ADAPTERS
@EACH_BODY
@pytest.mark.parametrize("missing", [1, 2, 12])
def test_a_body_that_was_cut_off_runs_nothing_and_the_whole_one_does(
    api: Api, path: str, content_type: str, body: bytes, missing: int
) -> None:
    refused = send(path, content_type, body[:-missing], len(body))
    assert refused.status_code in (400, 415), refused.content
    assert views.calls == []
    assert keys() == 0

    first = send(path, content_type, body, len(body))

    if path == "/plain" or content_type != "text/plain":
        assert first.status_code == 201
        assert_replay(send(path, content_type, body, len(body)), first)


@BOTH_ADAPTERS
@pytest.mark.parametrize("content_type", [FORM, JSON])
def test_a_body_of_which_nothing_came_is_not_an_empty_one(
    api: Api, path: str, content_type: str
) -> None:
    problem = assert_problem(
        send(path, content_type, b"", 20), 400, "body_incomplete", retry="same_key"
    )
    assert "Content-Length" in problem["detail"]
    assert views.calls == []


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(FORM, b"name=%ff", id="form"),
        pytest.param(
            MULTIPART,
            encode_multipart(BOUNDARY, {"name": "?"}).replace(b"?", b"\xff"),
            id="multipart",
        ),
    ],
)
def test_case_24_a_form_that_is_no_utf_8_is_a_400(
    api: Api, path: str, content_type: str, body: bytes
) -> None:
    assert_problem(send(path, content_type, body, len(body)), 400, "body_refused", retry="new_key")
    assert views.calls == []
    assert keys() == 0


@BOTH_ADAPTERS
@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("content_type", [FORM, MULTIPART])
@pytest.mark.parametrize(
    "charset", ["hex", "rot13", "zlib", "idna", "punycode", "undefined", "utf-16"]
)
def test_a_form_in_what_is_no_charset_of_forms_is_a_400(
    api: Api, path: str, method: str, content_type: str, charset: str
) -> None:
    answer = Client().generic(
        method,
        path,
        BODIES["form" if content_type is FORM else "multipart"][1],
        f"{content_type}; charset={charset}",
        headers={"Idempotency-Key": "k"},
    )
    assert_problem(answer, 400, "body_refused", retry="new_key")
    assert views.calls == []
    assert keys() == 0
