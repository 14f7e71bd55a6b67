"""Contract cases 18 to 28: what is the same request, and what is another one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.test import Client
from django.test.client import BOUNDARY, encode_multipart
from rest_framework.exceptions import ValidationError

from idempotency.core import fingerprints
from idempotency.models import IdempotencyKey
from tests.integration.portable import views
from tests.integration.portable.api import (
    PROBLEM,
    Api,
    Gate,
    abandon,
    assert_problem,
    assert_replay,
    background,
    end_lease,
    key_of,
    keys,
)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])
FORM = "application/x-www-form-urlencoded"


def assert_reused(response: Any) -> None:
    problem = assert_problem(response, 422, "idempotency_key_reused", retry="new_key")
    assert problem["type"] == "http://testserver/problems/idempotency_key_reused/"
    assert 'rel="describedby"' in response["Link"]


@BOTH_ADAPTERS
def test_case_18_another_amount_is_a_422_and_the_original_still_replays(
    api: Api, path: str, each_store: str
) -> None:
    first = api.post(path, {"amount": 100}, "k")

    assert_reused(api.post(path, {"amount": 101}, "k"))

    assert_replay(api.post(path, {"amount": 100}, "k"), first)
    assert views.effects() == len(views.calls) == 1


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("?a=1", {"currency": "USD"}), id="currency"),
        pytest.param(("?a=2", {"currency": "EUR"}), id="query string"),
        pytest.param(("", {"currency": "EUR"}), id="no query string"),
    ],
)
def test_case_19_another_currency_or_query_is_a_422(api: Api, path: str, changed: Any) -> None:
    api.post(f"{path}?a=1", {"currency": "EUR"}, "k")

    query, body = changed
    assert_reused(api.post(f"{path}{query}", body, "k"))

    assert views.effects() == 1


def test_case_19_another_object_under_the_same_pattern_is_a_422(api: Api) -> None:
    first = api.post("/things/1/parts", {}, "k")

    assert_reused(api.post("/things/2/parts", {}, "k"))

    assert_replay(api.post("/things/1/parts", {}, "k"), first)
    assert views.effects() == 1


def test_case_19_another_route_or_method_is_another_scope_and_runs(api: Api) -> None:
    assert api.post("/things", {}, "k").status_code == 201
    assert api.post("/required", {}, "k").status_code == 201
    assert api.send("PATCH", "/things", {}, "k").status_code == 201

    assert views.effects() == 3
    routes = IdempotencyKey.objects.values_list("route", flat=True)
    assert sorted(routes) == ["PATCH /things", "POST /required", "POST /things"]


def test_case_19_under_the_scope_of_the_tenant_another_route_is_a_422(
    api: Api, each_store: str
) -> None:
    first = api.post("/tenant/one", {}, "k")

    assert_reused(api.post("/tenant/two", {}, "k"))
    assert_reused(api.send("PATCH", "/tenant/one", {}, "k"))

    assert_replay(api.post("/tenant/one", {}, "k"), first)
    assert views.effects() == 1


@pytest.mark.django_db(transaction=True)
@BOTH_ADAPTERS
def test_case_20_a_mismatch_while_the_first_is_running_is_a_422(
    api: Api, path: str, each_store: str
) -> None:
    gate = Gate()
    views.before_work = gate

    with background(lambda: api.post(path, {"amount": 1}, "k")) as first:
        gate.wait_until_reached()
        assert_reused(api.post(path, {"amount": 2}, "k"))
        busy = api.post(path, {"amount": 1}, "k")
        gate.open()

    assert_problem(busy, 409, "idempotency_key_in_use", retry="same_key")
    assert first.result().status_code == 201
    assert views.effects() == 1


@BOTH_ADAPTERS
def test_case_21_a_mismatch_on_a_failed_key_is_a_422(api: Api, path: str, each_store: str) -> None:
    views.behaviour = _raise(RuntimeError("a defect"))
    assert api.post(path, {"amount": 1}, "k").status_code == 500
    assert key_of("k").state == "failed"
    views.behaviour = None

    assert_reused(api.post(path, {"amount": 2}, "k"))

    assert views.effects() == 0
    assert api.post(path, {"amount": 1}, "k").status_code == 201
    assert views.effects() == 1


@BOTH_ADAPTERS
def test_case_21_a_mismatch_on_a_key_whose_lease_is_over_is_a_422(
    api: Api, path: str, each_store: str
) -> None:
    abandon(api, path, {"amount": 1}, "k")
    end_lease("k")

    assert_reused(api.post(path, {"amount": 2}, "k"))

    assert key_of("k").attempt == 1
    assert api.post(path, {"amount": 1}, "k").status_code == 201
    assert key_of("k").attempt == 2
    assert views.effects() == 1


def test_case_21_another_request_runs_under_a_released_key(api: Api, each_store: str) -> None:
    views.behaviour = _raise(ValidationError("the amount is too small"))
    assert api.post("/things", {"amount": 0}, "k").status_code == 400
    assert keys() == 0
    views.behaviour = None

    assert api.post("/things", {"amount": 1}, "k").status_code == 201
    assert views.effects() == 1


def _raise(error: Exception) -> Any:
    def behaviour(request: Any) -> Any:
        raise error

    return behaviour


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(b'{"b":"caf\\u00e9","a":{"y":[1,2],"x":null}}', id="order and escapes"),
        pytest.param(
            '\n{ "a" : {"x":null,\t"y":[1 , 2]}, "b": "café" }\r\n'.encode(), id="whitespace"
        ),
        pytest.param(b'{"a":{"x":null,"y":[1,2]},"\\u0062":"caf\xc3\xa9"}', id="escaped name"),
    ],
)
def test_case_22_json_in_another_spelling_is_a_replay(api: Api, path: str, spelling: bytes) -> None:
    first = api.post(path, '{"a":{"x":null,"y":[1,2]},"b":"café"}'.encode(), "k")

    assert first.status_code == 201
    assert_replay(api.post(path, spelling, "k"), first)
    assert views.effects() == 1


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
        "application/json; v=2",
    ],
)
def test_case_22_parameters_of_the_media_type_are_ignored(
    api: Api, path: str, content_type: str
) -> None:
    first = api.post(path, {"a": 1}, "k")

    assert_replay(api.post(path, {"a": 1}, "k", content_type=content_type), first)


DIFFERENT = [
    ("9007199254740993", "9007199254740992"),
    ("1", "true"),
    ("0", "false"),
    ("10", '"10"'),
    ("null", '"null"'),
    ("10", "10.0"),
    ("10", "1e1"),
    ("10.0", "1e1"),
    ("1e1", "1E1"),
    ("-0", "0"),
    ("[]", "{}"),
    ("[]", "null"),
    ("[1,2]", "[2,1]"),
    ("[1,2]", "[12]"),
    ('""', "null"),
    ('"\\u0000"', '""'),
    ('"e\\u0301"', '"\\u00e9"'),
]


@BOTH_ADAPTERS
@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_case_23_values_that_differ_never_collide(
    api: Api, path: str, one: str, other: str
) -> None:
    assert api.post(path, f'{{"a":{one}}}'.encode(), "k").status_code == 201

    assert_reused(api.post(path, f'{{"a":{other}}}'.encode(), "k"))


@BOTH_ADAPTERS
def test_case_23_absent_and_null_never_collide(api: Api, path: str) -> None:
    assert api.post(path, b'{"a":1}', "k").status_code == 201

    assert_reused(api.post(path, b'{"a":1,"b":null}', "k"))


AMBIGUOUS = {
    "a name twice": b'{"amount":1,"amount":2}',
    "a name twice, once escaped": b'{"amount":1,"\\u0061mount":1}',
    "a name twice, deep down": b'{"a":[{"b":{"c":1,"c":1}}]}',
    "NaN": b'{"amount":NaN}',
    "Infinity": b'{"amount":-Infinity}',
    "a number above doubles": b'{"amount":1e400}',
    "half a surrogate pair": b'{"a":"\\ud800"}',
    "the wrong half first": b'{"a":"\\udc00\\ud800"}',
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects nested 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "an integer of 5,000 digits": b'{"amount":' + b"9" * 5000 + b"}",
    "a fraction of 5,000 digits": b'{"amount":0.' + b"9" * 5000 + b"}",
    "invalid UTF-8": b'{"a":"\xff"}',
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "no JSON": b'{"a":',
    "two documents": b"{}{}",
}


@BOTH_ADAPTERS
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_case_24_an_ambiguous_body_is_a_400_and_nothing_runs(
    api: Api, path: str, name: str
) -> None:
    response = api.post(path, AMBIGUOUS[name], "k")

    assert response.status_code == 400
    if response["Content-Type"] == PROBLEM:
        assert_problem(response, 400, "body_refused", retry="new_key")
    assert views.calls == []
    assert keys() == 0


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_case_24_an_ambiguous_body_with_its_key_inside_is_a_400(api: Api, name: str) -> None:
    body = AMBIGUOUS[name]
    if body.startswith(b'{"'):
        body = b'{"client_token":"k",' + body[1:]

    for path in ("/body-field", "/plain-body-field"):
        assert api.post(path, body).status_code == 400
    assert views.calls == []
    assert keys() == 0


def test_case_24_the_depth_that_is_allowed_runs(api: Api) -> None:
    body = b"[" * fingerprints.MAX_JSON_DEPTH + b"]" * fingerprints.MAX_JSON_DEPTH

    assert api.post("/required", body, "k").status_code == 201


def multipart(boundary: str, content: bytes, **fields: str) -> tuple[bytes, str]:
    """Body and Content-Type of a form with one file."""
    upload = SimpleUploadedFile("receipt.txt", content, content_type="text/plain")
    body = encode_multipart(boundary, {"file": upload, **fields})
    return body, f"multipart/form-data; boundary={boundary}"


def post_multipart(
    api: Api, path: str, boundary: str, content: bytes, *, method: str = "POST", **fields: str
) -> Any:
    body, content_type = multipart(boundary, content, **fields)
    return api.send(method, path, body, "k", content_type=content_type)


@BOTH_ADAPTERS
def test_case_25_multipart_with_a_new_boundary_is_a_replay(api: Api, path: str) -> None:
    seen = []
    views.behaviour = lambda request: (
        seen.append(request.FILES["file"].read()),
        HttpResponse("ok"),
    )[1]
    first = post_multipart(api, path, "one", b"paid", amount="1")

    again = post_multipart(api, path, "another", b"paid", amount="1")

    assert first.status_code == 200
    assert_replay(again, first)
    # The fingerprint has read the file; the handler reads it from its beginning all the same.
    assert seen == [b"paid"]


@BOTH_ADAPTERS
def test_case_25_one_changed_byte_of_a_file_is_a_422(api: Api, path: str) -> None:
    post_multipart(api, path, BOUNDARY, b"paid", amount="1")

    assert_reused(post_multipart(api, path, BOUNDARY, b"paie", amount="1"))
    assert_reused(post_multipart(api, path, BOUNDARY, b"paid", amount="2"))
    assert_reused(post_multipart(api, path, BOUNDARY, b"paid", amount="1", note=""))


@BOTH_ADAPTERS
def test_case_25_multipart_of_a_patch_is_compared_like_that_of_a_post(api: Api, path: str) -> None:
    first = post_multipart(api, path, "one", b"paid", method="PATCH", amount="1")

    assert first.status_code == 201
    assert_replay(post_multipart(api, path, "two", b"paid", method="PATCH", amount="1"), first)
    assert_reused(post_multipart(api, path, "two", b"paie", method="PATCH", amount="1"))
    assert_reused(post_multipart(api, path, "two", b"paid", method="PATCH", amount="2"))


@BOTH_ADAPTERS
def test_case_26_a_form_of_a_patch_is_compared_like_that_of_a_post(api: Api, path: str) -> None:
    first = api.send("PATCH", path, b"a=1&b=", "k", content_type=FORM)

    assert_replay(api.send("PATCH", path, b"b=&a=%31", "k", content_type=FORM), first)
    assert_reused(api.send("PATCH", path, b"a=1", "k", content_type=FORM))


@BOTH_ADAPTERS
def test_case_25_multipart_that_is_broken_is_a_400_and_nothing_runs(api: Api, path: str) -> None:
    for method in ("POST", "PATCH"):
        broken = api.send(method, path, b"a", "k", content_type="multipart/form-data; boundary=")
        assert broken.status_code == 400
    assert views.calls == []
    assert keys() == 0


@BOTH_ADAPTERS
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_case_25_a_file_on_disk_is_compared_by_its_bytes(
    api: Api, path: str, settings: Any, method: str
) -> None:
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    first = post_multipart(api, path, "one", b"paid" * 100, method=method)

    assert first.status_code == 201
    assert_replay(post_multipart(api, path, "two", b"paid" * 100, method=method), first)
    assert_reused(post_multipart(api, path, "two", b"paid" * 99 + b"paie", method=method))


@BOTH_ADAPTERS
def test_case_26_an_empty_field_and_no_field_differ(api: Api, path: str) -> None:
    first = api.post(path, b"a=1&b=", "k", content_type=FORM)

    assert_reused(api.post(path, b"a=1", "k", content_type=FORM))
    assert_reused(api.post(path, b"a=1&b=2", "k", content_type=FORM))

    assert_replay(api.post(path, b"b=&a=1", "k", content_type=FORM), first)
    assert_replay(api.post(path, b"a=%31&b", "k", content_type=FORM), first)


@BOTH_ADAPTERS
def test_case_26_the_order_of_equal_names_counts(api: Api, path: str) -> None:
    first = api.post(path, b"a=1&a=2&b=3", "k", content_type=FORM)

    assert_reused(api.post(path, b"a=2&a=1&b=3", "k", content_type=FORM))
    assert_replay(api.post(path, b"b=3&a=1&a=2", "k", content_type=FORM), first)


@BOTH_ADAPTERS
@pytest.mark.parametrize(("one", "other"), [(b"", b"{}"), (b"{}", b"")])
def test_case_26_an_empty_body_and_an_empty_object_differ(
    api: Api, path: str, one: bytes, other: bytes
) -> None:
    first = api.post(path, one, "k")

    assert first.status_code == 201
    assert_reused(api.post(path, other, "k"))
    assert_replay(api.post(path, one, "k"), first)


@BOTH_ADAPTERS
def test_case_26_a_form_and_json_of_the_same_content_differ(api: Api, path: str) -> None:
    api.post(path, {"a": "1"}, "k")

    assert_reused(api.post(path, b"a=1", "k", content_type=FORM))


@pytest.fixture
def browser(api: Api) -> Client:
    """A signed-in session whose requests are checked for their CSRF token."""
    User.objects.create_user("member", password="secret")
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    assert client.login(username="member", password="secret")
    client.cookies["csrftoken"] = "x" * 32
    return client


def test_case_27_multipart_of_a_session_is_fingerprinted_though_its_body_was_read(
    browser: Client,
) -> None:
    api, token = Api(browser), "x" * 32
    first = post_multipart(api, "/guarded", "one", b"paid", csrfmiddlewaretoken=token)

    assert first.status_code == 201, first.content
    again = post_multipart(api, "/guarded", "two", b"paid", csrfmiddlewaretoken=token)
    assert_replay(again, first)
    assert_reused(post_multipart(api, "/guarded", "two", b"paie", csrfmiddlewaretoken=token))
    assert views.effects() == 1


def test_case_27_a_form_of_a_session_is_fingerprinted_though_its_body_was_read(
    browser: Client,
) -> None:
    api = Api(browser)
    fields = {"csrfmiddlewaretoken": "x" * 32, "amount": "1"}

    first = api.post("/guarded", urlencode(fields).encode(), "k", content_type=FORM)

    assert first.status_code == 201, first.content
    assert_replay(api.post("/guarded", urlencode(fields).encode(), "k", content_type=FORM), first)
    other = urlencode(fields | {"amount": "2"}).encode()
    assert_reused(api.post("/guarded", other, "k", content_type=FORM))


def test_case_27_without_the_csrf_token_it_is_a_403_and_no_row(browser: Client) -> None:
    assert post_multipart(Api(browser), "/guarded", "one", b"paid").status_code == 403
    assert keys() == 0


def test_case_28_after_an_upgrade_of_the_rules_an_old_key_still_replays(
    api: Api, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = api.post("/required", {"amount": 1}, "k")
    _upgrade(monkeypatch)

    assert_replay(api.post("/required", {"amount": 1}, "k"), first)
    assert_reused(api.post("/required", {"amount": 2}, "k"))

    assert api.post("/required", {"amount": 1}, "new").status_code == 201
    assert (key_of("k").fingerprint_version, key_of("new").fingerprint_version) == (1, 2)
    assert views.effects() == 2


def test_case_28_an_old_key_that_failed_is_compared_by_its_own_rules(
    api: Api, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    views.behaviour = _raise(RuntimeError("a defect"))
    api.post("/required", {"amount": 1}, "k")
    views.behaviour = None
    _upgrade(monkeypatch)

    assert_reused(api.post("/required", {"amount": 2}, "k"))
    assert api.post("/required", {"amount": 1}, "k").status_code == 201
    assert views.effects() == 1


def test_case_28_a_key_of_a_newer_release_is_a_503_and_nothing_runs(
    api: Api, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        _upgrade(newer)
        first = api.post("/required", {"amount": 1}, "k")
    assert first.status_code == 201

    refused = api.post("/required", {"amount": 1}, "k")

    assert_problem(refused, 503, "idempotency_unavailable", retry="same_key")
    assert int(refused["Retry-After"]) >= 1
    assert views.effects() == 1


def _upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose rules are another version: here they turn every byte of the old one round."""
    first = fingerprints.SUPPORTED_VERSIONS[1]
    second = lambda *facts: bytes(reversed(first(*facts)))  # noqa: E731
    monkeypatch.setattr(fingerprints, "SUPPORTED_VERSIONS", {1: first, 2: second})
    monkeypatch.setattr(fingerprints, "CURRENT_VERSION", 2)


def test_a_field_the_policy_excludes_may_differ(api: Api) -> None:
    first = api.post("/excluding", {"amount": 1, "sent_at": "10:00"}, "k")

    assert_replay(api.post("/excluding", {"amount": 1, "sent_at": "10:01"}, "k"), first)
    assert_replay(api.post("/excluding", {"amount": 1}, "k"), first)
    assert_reused(api.post("/excluding", {"amount": 2, "sent_at": "10:00"}, "k"))


def test_a_raw_fingerprint_compares_bytes(api: Api) -> None:
    first = api.post("/raw", b'{"a":1}', "k")

    assert_replay(api.post("/raw", b'{"a":1}', "k"), first)
    assert_reused(api.post("/raw", b'{"a": 1}', "k"))
    # Ambiguous JSON has bytes like any other.
    assert api.post("/raw", json.dumps({"a": 1}).encode() + b" ", "other").status_code == 201
