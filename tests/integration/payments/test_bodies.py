"""What a body may hold. Nothing reaches the database that it would refuse."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from payments.models import Charge
from tests.integration.payments.api import Api, problem
from tests.plugins.gateway import GatewayProcess

GOOD: dict[str, Any] = {"amount": 1000, "currency": "EUR", "source": "tok_visa"}
FORM = "application/x-www-form-urlencoded"

pytestmark = pytest.mark.usefixtures("bank")


def post(api: Api, body: Any, content_type: str = "application/json") -> Any:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    return api.request("POST", "/v1/charges", body, content_type=content_type, headers=headers)


def refused(response: Any, field: str) -> list[str]:
    errors: dict[str, list[str]] = problem(response, 400, "invalid_request")["errors"]
    assert list(errors) == [field]
    assert not Charge.objects.exists()
    return errors[field]


@pytest.mark.parametrize(
    "amount",
    [0, -1, 10**12, 10**30, 1.0, 10.5, "10", "", True, False, None, [1], {"a": 1}],
)
def test_an_amount_is_a_positive_whole_number_of_twelve_digits(acme: Api, amount: Any) -> None:
    assert refused(post(acme, {**GOOD, "amount": amount}), "amount")


def test_the_largest_amount_is_charged(acme: Api) -> None:
    assert post(acme, {**GOOD, "amount": 10**12 - 1}).status_code == 201
    assert acme.balance() == 10**12 - 1


@pytest.mark.parametrize(
    "currency", ["eur", "EU", "EURO", "XXX", "XAU", "BGN", "", " EUR", 978, None, ["EUR"], {}, True]
)
def test_a_currency_is_an_active_code_in_capitals(acme: Api, currency: Any) -> None:
    assert refused(post(acme, {**GOOD, "currency": currency}), "currency")


@pytest.mark.parametrize(
    "source",
    ["", "visa", "tok_", "tok_VISA", "tok_visa ", "tok_visa\n", "tok_" + "a" * 61, 5, None],
)
def test_a_source_is_a_token(acme: Api, source: Any) -> None:
    assert refused(post(acme, {**GOOD, "source": source}), "source")


@pytest.mark.parametrize("description", ["x" * 501, 5, None, ["x"], True])
def test_a_description_is_a_text_of_500_characters(acme: Api, description: Any) -> None:
    assert refused(post(acme, {**GOOD, "description": description}), "description")


def test_a_description_is_kept_as_it_came(acme: Api) -> None:
    text = "  'quoted' <b>\u2028 \N{PILE OF POO}\t\r\n" + "x" * 470
    response = post(acme, {**GOOD, "description": text})
    assert response.json()["description"] == text
    assert Charge.objects.get().description == text


@pytest.mark.parametrize(
    "metadata", [None, [], "{}", 5, True, {"a": "x" * 16_384}, {"x" * 16_384: 1}]
)
def test_metadata_is_an_object_of_bounded_size(acme: Api, metadata: Any) -> None:
    assert refused(post(acme, {**GOOD, "metadata": metadata}), "metadata")


def test_metadata_may_hold_any_json(acme: Api) -> None:
    metadata = {"": [1, 2.5, None, True, {"deep": {"er": "é"}}], "n": 10**300, "s": 1e-300}
    response = post(acme, {**GOOD, "metadata": metadata})
    assert response.json()["metadata"] == metadata
    assert acme.get(response["Location"]).content == response.content


@pytest.mark.parametrize("body", [[], [GOOD], "text", 5, True, [[]]])
def test_a_body_is_an_object(acme: Api, body: Any) -> None:
    assert refused(post(acme, json.dumps(body)), "body")


def test_an_empty_body_misses_every_field(acme: Api) -> None:
    empty: list[Any] = [None, {}, ""]
    for body in empty:
        document = problem(post(acme, body), 400, "invalid_request")
        assert sorted(document["errors"]) == ["amount", "currency", "source"]


def test_all_that_is_wrong_is_told_at_once(acme: Api) -> None:
    document = problem(post(acme, {"amount": 0, "currency": "eur"}), 400, "invalid_request")
    assert sorted(document["errors"]) == ["amount", "currency", "source"]


@pytest.mark.parametrize("name", ["ammount", "Amount", "id", "status", "merchant", ""])
def test_an_unknown_field_is_refused_by_name(acme: Api, name: str) -> None:
    assert refused(post(acme, {**GOOD, name: 1}), name) == ["There is no such field."]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        b'{"amount": NaN}',
        b'{"amount": Infinity}',
        b'{"amount": 1, "amount": 2}',
        b'{"metadata": {"a": 1, "a": 1}}',
        b'{"metadata": {"a": 1e400}}',
        b'{"metadata": {"a": -1e400}}',
        b'{"metadata": {"a": "\\u0000"}}',
        b'{"metadata": {"\\u0000": 1}}',
        b'{"metadata": {"a": "\\ud800"}}',
        b'{"description": "\\udc00"}',
        b'{"\\ud800": 1}',
        b'{"amount": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        '{"amount": 1}'.encode("utf-16"),
        b'\xef\xbb\xbf{"amount": 1}',
    ],
    ids=range(19),
)
def test_json_that_is_ambiguous_or_cannot_be_stored_is_refused(acme: Api, body: bytes) -> None:
    response = post(acme, body)
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] in {"malformed_request", "body_refused"}
    # Without a key nobody but this product reads the body.
    charge = Charge.objects.create(merchant=acme.merchant, amount=1, currency="EUR")
    answer = acme.request("PATCH", charge.get_absolute_url(), body, headers={"If-Match": "*"})
    problem(answer, 400, "malformed_request")


@pytest.mark.parametrize("charset", ["utf-8", "UTF-16", "hex", "rot13", "nonsense", '"'])
def test_a_charset_changes_nothing(acme: Api, charset: str) -> None:
    body = json.dumps({**GOOD, "description": "é"}).encode()
    response = post(acme, body, f"application/json; charset={charset}")
    assert response.status_code == 201
    assert response.json()["description"] == "é"
    form = urlencode({**GOOD, "description": "é"})
    response = post(acme, form, f"{FORM}; charset={charset}")
    assert response.status_code == 201
    assert response.json()["description"] == "é"


def test_a_form_means_the_same_as_json(acme: Api) -> None:
    metadata = {"order": [17, "x"]}
    fields = {**GOOD, "description": "Tea", "metadata": json.dumps(metadata)}
    answers = [
        post(acme, urlencode(fields), FORM),
        post(acme, encode_multipart(BOUNDARY, fields), MULTIPART_CONTENT),
        post(acme, {**fields, "metadata": metadata}),
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    shown = [
        {k: v for k, v in answer.json().items() if k not in {"id", "created", "gateway_reference"}}
        for answer in answers
    ]
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize(
    "amount", ["0", "-5", "1.0", "1e3", " 10", "\u0661", "1_000", "0x10", "9" * 13]
)
def test_an_amount_in_a_form_is_digits(acme: Api, amount: str) -> None:
    refused(post(acme, urlencode({**GOOD, "amount": amount}), FORM), "amount")


@pytest.mark.parametrize(
    "metadata", ["", "x", "[]", "5", '{"a":1,"a":2}', '{"a":"\\u0000"}', "[" * 9999]
)
def test_metadata_in_a_form_is_the_text_of_an_object(acme: Api, metadata: str) -> None:
    refused(post(acme, urlencode({**GOOD, "metadata": metadata}), FORM), "metadata")


def test_a_field_twice_in_a_form_is_refused(acme: Api) -> None:
    refused(post(acme, urlencode(GOOD) + "&amount=1000", FORM), "amount")


def test_a_file_is_not_a_text(acme: Api) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    fields = {**GOOD, "description": SimpleUploadedFile("x.txt", b"x")}
    refused(post(acme, encode_multipart(BOUNDARY, fields), MULTIPART_CONTENT), "description")


def test_a_nul_in_a_form_is_refused(acme: Api) -> None:
    refused(post(acme, urlencode({**GOOD, "description": "a\0b"}), FORM), "description")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"x", "multipart/form-data"),
        (b"--b\r\nx", "multipart/form-data; boundary=b"),
        (b"--b\r\n-12--b--\r\n", "multipart/form-data; boundary=b"),
        (b"x" * 50, "multipart/form-data; boundary=" + "b" * 500),
        ("&".join(f"a{n}=1" for n in range(2000)), FORM),
    ],
    ids=["no boundary", "cut short", "no part", "long boundary", "too many fields"],
)
def test_a_form_that_cannot_be_read_is_refused(acme: Api, body: Any, content_type: str) -> None:
    response = post(acme, body, content_type)
    assert response.status_code in {400, 415}
    assert response["Content-Type"] == "application/problem+json"


WHOLE = encode_multipart(BOUNDARY, GOOD)


@pytest.mark.parametrize("kept", range(1, len(WHOLE) - 2, 7))
def test_a_multipart_body_that_breaks_off_charges_nothing(acme: Api, kept: int) -> None:
    problem(post(acme, WHOLE[:kept], MULTIPART_CONTENT), 400, "malformed_request")
    assert acme.balance() == 0


def test_a_multipart_body_may_end_without_a_new_line(acme: Api) -> None:
    assert post(acme, WHOLE.removesuffix(b"\r\n"), MULTIPART_CONTENT).status_code == 201


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"hello", "multipart/form-data; boundary=b"),
        (b"--b", "multipart/form-data; boundary=b"),
        (b"&&&", FORM),
        (b"", "application/json"),
        (b"", FORM),
    ],
)
def test_a_body_of_which_nothing_is_left_refunds_nothing(
    acme: Api, bank: GatewayProcess, body: bytes, content_type: str
) -> None:
    charge = acme.charge().json()["id"]
    headers = {"Authorization": f"Bearer {acme.secret}", "Idempotency-Key": uuid.uuid4().hex}
    path = f"/v1/charges/{charge}/refunds"
    # The test client leaves the type of an empty body out.
    answer = Client().post(path, body, content_type, headers=headers, CONTENT_TYPE=content_type)
    problem(answer, 400, "malformed_request")
    assert acme.balance() == 1000
    assert Client().post(path, headers=headers).status_code == 201


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "text/json", "x", "*/*", "application/*"]
)
def test_another_media_type_is_not_supported(acme: Api, content_type: str) -> None:
    problem(post(acme, b"{}", content_type), 415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(acme: Api, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = {**GOOD, "description": "x" * 1000}
    for content_type, content in [("application/json", json.dumps(body)), (FORM, urlencode(body))]:
        problem(post(acme, content, content_type), 413, "request_too_large")
    endpoint = acme.request("PUT", "/v1/webhook-endpoints/x", {"url": "https://a/" + "x" * 1000})
    problem(endpoint, 413, "request_too_large")


def test_the_key_may_be_a_field_of_the_body(acme: Api, bank: GatewayProcess) -> None:
    body = {**GOOD, "client_token": "order-17"}
    answers = [acme.request("POST", "/v1/charges", body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1]["Idempotent-Replayed"] == "true"
    assert Charge.objects.count() == 1


def test_a_key_is_required(acme: Api) -> None:
    problem(acme.request("POST", "/v1/charges", GOOD), 400, "idempotency_key_missing")


def test_a_body_without_a_change_takes_no_token(acme: Api) -> None:
    charge = Charge.objects.create(merchant=acme.merchant, amount=1, currency="EUR")
    answer = acme.request(
        "PATCH", charge.get_absolute_url(), {"client_token": "x"}, headers={"If-Match": "*"}
    )
    problem(answer, 400, "invalid_request")
