"""Contract cases 1 to 8: the key as it comes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from idempotency.models import IdempotencyKey
from tests.integration.portable import views
from tests.integration.portable.api import Api, assert_problem, assert_replay, keys, statements

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])

MALFORMED = {
    "empty": "",
    "blank": " \t ",
    "too long": "k" * 256,
    "too long, quoted": f'"{"k" * 256}"',
    "non-ASCII": "clé",
    "a blank inside": "a b",
    "a control character": "a\x01b",
    "NUL": "a\x00b",
    "DEL": "a\x7fb",
    "NUL, quoted": '"a\x00b"',
    "a blank inside, quoted": '"a b"',
    "a bad escape": r'"a\b"',
    "an unterminated quote": '"abc',
    "only a quote": '"',
    "an empty string": '""',
    "two header lines": "abc,def",
    "two equal header lines": "abc,abc",
    "two quoted header lines": '"abc", "def"',
    "a bare key with parameters": "abc;v=1",
    "a bare key with a quote": 'a"b',
    "a bare key with a backslash": "a\\b",
    "text after the quote": '"abc"def',
    "a list": '("abc")',
}


@BOTH_ADAPTERS
def test_case_01_a_required_key_that_is_missing_is_a_400_and_nothing_runs(
    api: Api, path: str
) -> None:
    response = api.post(path, {"amount": 1})

    assert_problem(response, 400, "idempotency_key_missing", retry="new_key")
    assert response["Link"] == (
        '<http://testserver/problems/idempotency_key_missing/>; rel="describedby"'
    )
    assert views.calls == []
    assert keys() == 0


@pytest.mark.parametrize("path", ["/things", "/plain-optional"])
def test_case_02_an_optional_key_that_is_missing_runs_and_leaves_no_row(
    api: Api, path: str
) -> None:
    responses = [api.post(path, {"amount": 1}) for _ in range(2)]

    assert [response.status_code for response in responses] == [201, 201]
    assert views.effects() == 2
    assert views.calls[0].idempotency is None
    assert keys() == 0


@BOTH_ADAPTERS
def test_case_03_a_quoted_and_a_bare_key_are_one_execution(api: Api, path: str) -> None:
    first = api.post(path, {"amount": 1}, '"abc"')

    assert_replay(api.post(path, {"amount": 1}, "abc"), first)
    assert_replay(api.post(path, {"amount": 1}, '"abc";note=1'), first)
    assert views.effects() == 1


@BOTH_ADAPTERS
@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
def test_case_04_a_malformed_key_is_a_400_without_a_look_up(
    api: Api, path: str, value: str
) -> None:
    with statements() as sent:
        response = api.post(path, {"amount": 1}, value)

    assert_problem(response, 400, "idempotency_key_invalid", retry="new_key")
    assert 'rel="describedby"' in response["Link"]
    assert views.calls == []
    assert sent == []
    assert keys() == 0


def test_case_04_an_optional_key_that_is_malformed_is_a_400_as_well(api: Api) -> None:
    assert_problem(api.post("/things", {}, "abc,def"), 400, "idempotency_key_invalid")
    assert views.calls == []


@pytest.mark.parametrize("length", [1, 255])
def test_case_04_the_longest_and_the_shortest_key_are_accepted(api: Api, length: int) -> None:
    first = api.post("/things", {}, "~" * length)

    assert first.status_code == 201
    assert_replay(api.post("/things", {}, "~" * length), first)


def test_case_04_a_policy_may_raise_the_minimum_length(api: Api) -> None:
    assert_problem(api.post("/long-key", {}, "k" * 15), 400, "idempotency_key_invalid")
    assert api.post("/long-key", {}, "k" * 16).status_code == 201


def test_case_04_a_policy_may_demand_a_uuid(api: Api) -> None:
    assert_problem(api.post("/uuid", {}, "k" * 36), 400, "idempotency_key_invalid")
    key = "8e03978e-40d5-43dd-bc93-6894a57f9324"
    assert api.post("/uuid", {}, key).status_code == 201


@BOTH_ADAPTERS
def test_case_05_keys_that_differ_only_in_case_are_two_keys(api: Api, path: str) -> None:
    assert api.post(path, {}, "Abc").status_code == 201
    assert api.post(path, {}, "abc").status_code == 201
    assert views.effects() == 2
    assert keys() == 2


INJECTIONS = [
    "'OR'1'='1",
    "');DROP/**/TABLE/**/idempotency_idempotencykey;--",
    "%s%(key)s",
    "{0.__class__}",
    "idempotency:wake:*",
    "$1",
    "../../etc/passwd",
    "<script>alert(1)</script>",
]


@pytest.mark.parametrize("value", INJECTIONS)
@pytest.mark.parametrize("path", ["/waiting", "/plain"])
def test_case_06_an_injection_is_an_inert_key(api: Api, path: str, value: str) -> None:
    quoted = json.dumps(value)

    first = api.post(path, {"amount": 1}, quoted)

    assert first.status_code == 201
    assert_replay(api.post(path, {"amount": 1}, quoted), first)
    assert IdempotencyKey.objects.get().key == value


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\n[ERROR] forged"])
def test_case_06_a_line_break_in_a_key_is_refused_and_not_logged(
    api: Api, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    response = api.post("/required", {}, value)

    assert_problem(response, 400, "idempotency_key_invalid")
    assert "Injected" not in caplog.text
    assert "forged" not in caplog.text
    assert b"Injected" not in response.content


def test_case_06_no_log_line_holds_a_key(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = "a-secret-of-its-caller"

    def fail(request: Any) -> Any:
        raise RuntimeError("the handler failed")

    views.behaviour = fail
    assert api.post("/required", {"amount": 1}, key).status_code == 500
    views.behaviour = None
    assert api.post("/required", {"amount": 1}, key).status_code == 201
    assert api.post("/required", {"amount": 1}, key).status_code == 201
    assert api.post("/required", {"amount": 2}, key).status_code == 422

    logged = [record for record in caplog.records if not record.name.startswith("django.db")]
    assert "the handler failed" in caplog.text
    assert all(key not in record.getMessage() for record in logged)
    assert all(key not in (record.exc_text or "") for record in logged)


def test_case_07_a_key_on_get_is_ignored(api: Api) -> None:
    for key in ("abc", "abc", "mal,formed"):
        response = api.send("GET", "/required", key=key)
        assert response.status_code == 200
        assert response.json() == {"key": key}
        assert "Idempotent-Replayed" not in response.headers
    assert keys() == 0


@pytest.mark.parametrize("path", ["/required", "/plain"])
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
def test_case_07_a_key_on_head_and_options_is_ignored(api: Api, path: str, method: str) -> None:
    assert api.send(method, path, key="mal,formed").status_code < 400
    assert keys() == 0


def test_case_08_a_key_sent_unasked_to_an_unprotected_view_is_harmless(api: Api) -> None:
    for key in ("abc", "abc", "mal,formed"):
        assert api.post("/unprotected", {}, key).status_code == 201
    assert views.effects() == 3
    assert keys() == 0


@pytest.mark.parametrize("path", ["/body-field", "/plain-body-field"])
def test_a_key_in_the_header_and_then_in_the_body_is_the_same_request(api: Api, path: str) -> None:
    first = api.post(path, {"amount": 1}, "abc")

    assert_replay(api.post(path, {"amount": 1, "client_token": "abc"}), first)
    assert_replay(api.post(path, {"amount": 1, "client_token": "abc"}, '"abc"'), first)
    assert views.effects() == 1


@pytest.mark.parametrize("path", ["/body-field", "/plain-body-field"])
@pytest.mark.parametrize(
    "token", [None, "", 7, True, ["abc"], {"a": 1}, "é", "a b", "a\x00", "k" * 256]
)
def test_a_key_in_the_body_that_cannot_be_one_is_a_400(api: Api, path: str, token: Any) -> None:
    response = api.post(path, {"amount": 1, "client_token": token})

    assert_problem(response, 400, "idempotency_key_invalid")
    assert views.calls == []
    assert keys() == 0
