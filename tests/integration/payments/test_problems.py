"""Every error is a problem document, and every problem has a page."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from payments import problems
from tests.integration.payments.api import Api, problem

PATHS = [
    "/v1/charges",
    "/v1/charges/ch_000000000000000000000000",
    "/v1/charges/ch_000000000000000000000000/refunds",
    "/v1/refunds/re_000000000000000000000000",
    "/v1/transfers",
    "/v1/transfers/tr_000000000000000000000000",
    "/v1/balance",
    "/v1/webhook-endpoints/x",
    "/v1/idempotency-keys/x",
]


@pytest.mark.parametrize("code", problems.TYPES)
def test_every_problem_has_a_page(client: Client, code: str) -> None:
    response = client.get(f"/problems/{code}/")
    assert response.status_code == 200
    text = response.content.decode()
    assert code in text
    assert problems.TYPES[code].title in text


def test_the_type_is_the_url_of_the_page(acme: Api, client: Client) -> None:
    kind = problem(acme.get("/v1/nothing"), 404, "not_found")["type"]
    assert kind == "http://testserver/problems/not_found/"
    assert client.get(kind).status_code == 200


@pytest.mark.parametrize("path", ["/v1/", "/v1/nothing", "/v1/charges/", "/v1/charges/a/b/c"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "FOO"])
def test_an_address_without_a_route_is_not_found(acme: Api, method: str, path: str) -> None:
    problem(acme.request(method, path, {}), 404, "not_found")


def test_the_idempotency_layers_pages_are_served_beside_ours(client: Client) -> None:
    assert client.get("/problems/idempotency_key_missing/").status_code == 200
    assert client.get("/problems/nothing/").status_code == 404


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["DELETE", "TRACE", "FOO"])
def test_an_unsupported_method_is_told_which_are(acme: Api, method: str, path: str) -> None:
    response = acme.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert response["Allow"]


@pytest.mark.parametrize("path", PATHS)
def test_options_lists_the_methods(acme: Api, path: str) -> None:
    response = acme.request("OPTIONS", path)
    assert (response.status_code, response.content) == (204, b"")
    assert "OPTIONS" in response["Allow"]


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "image/*"])
def test_an_unacceptable_answer_is_not_made(acme: Api, accept: str) -> None:
    problem(acme.get("/v1/balance", Accept=accept), 406, "not_acceptable")


@pytest.mark.parametrize("accept", ["*/*", "application/*", "application/json; indent=4"])
def test_an_acceptable_answer_has_one_spelling(acme: Api, accept: str) -> None:
    acme.fund(5)
    response = acme.get("/v1/balance", Accept=accept)
    assert response.content == b'{"data":[{"currency":"EUR","amount":5}]}'


@pytest.mark.parametrize(
    "path", ["/v1/charges/{}", "/v1/charges/{}/refunds", "/v1/refunds/{}", "/v1/transfers/{}"]
)
@pytest.mark.parametrize("name", ["%00", "ch_x", "é", "' OR 1=1 --", "x" * 3000, "%F0%9F%92%A9"])
def test_a_name_that_cannot_be_an_id_is_not_found(acme: Api, path: str, name: str) -> None:
    problem(acme.get(path.format(name)), 404, "not_found")


@pytest.mark.parametrize("key", ["a", "a/b", "%0A", "%00", "é", "x" * 3000])
def test_a_key_that_was_never_used_is_an_empty_list(acme: Api, key: str) -> None:
    response = acme.get(f"/v1/idempotency-keys/{key}")
    assert (response.status_code, response.json()) == (200, {"data": []})


def test_a_format_in_the_query_changes_nothing(acme: Api) -> None:
    assert acme.get("/v1/balance?format=xml").status_code == 200


@pytest.mark.parametrize("path", ["/v1/balance", "/v1/charges"])
def test_a_database_that_is_away_is_told_as_such(
    acme: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(**arguments: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("payments.merchants.active_api_key", fail)
    response = acme.get(path)
    problem(response, 503, "service_unavailable")
    assert int(response["Retry-After"]) >= 1
    # A request that may carry a key hears the idempotency layer: nothing was run.
    problem(acme.charge(), 503, "idempotency_unavailable")
