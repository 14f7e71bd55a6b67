"""PUT is idempotent by itself: the example of a route that needs no key."""

from __future__ import annotations

from typing import Any

import pytest

from payments.models import WebhookEndpoint
from tests.integration.payments.api import Api, at_once, problem


def put(api: Api, name: str, url: Any = "https://example.com/hook") -> Any:
    return api.request("PUT", f"/v1/webhook-endpoints/{name}", {"url": url})


def test_the_first_put_creates_and_the_next_replaces(acme: Api) -> None:
    created = put(acme, "main")
    assert created.status_code == 201
    assert created["Location"] == "/v1/webhook-endpoints/main"
    replaced = put(acme, "main", "http://localhost:8080/other?x=1")
    assert replaced.status_code == 200
    assert acme.get(created["Location"]).content == replaced.content
    assert WebhookEndpoint.objects.get().url == "http://localhost:8080/other?x=1"


def test_each_merchant_has_names_of_its_own(acme: Api, globex: Api) -> None:
    assert [put(acme, "main").status_code, put(globex, "main").status_code] == [201, 201]
    problem(globex.get("/v1/webhook-endpoints/other"), 404, "not_found")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "javascript:alert(1)",
        "https://",
        "https:///path",
        "https://user:password@example.com/",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://example.com/é",
        "https://example.com:port/",
        "https://-x/",
        "https://example.com/" + "x" * 2048,
        "HTTPS://example.com/",
        5,
        None,
    ],
)
def test_a_url_is_http_with_a_host_and_no_password(acme: Api, url: Any) -> None:
    errors = problem(put(acme, "main", url), 400, "invalid_request")["errors"]
    assert list(errors) == ["url"]


@pytest.mark.parametrize("name", ["x" * 65, "a.b", "a%20b", "%00", "é", "a:b"])
def test_a_name_is_letters_digits_hyphens_and_underscores(acme: Api, name: str) -> None:
    assert list(problem(put(acme, name), 400, "invalid_request")["errors"]) == ["id"]
    problem(acme.get(f"/v1/webhook-endpoints/{name}"), 400, "invalid_request")


@pytest.mark.django_db(transaction=True)
def test_the_same_put_at_once_makes_one_endpoint(acme: Api) -> None:
    answers = at_once(*[lambda: put(acme, "main")] * 4)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert WebhookEndpoint.objects.count() == 1
