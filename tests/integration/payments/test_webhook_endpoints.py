"""PUT is idempotent by itself: the example of a route that needs no key."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from payments.models import WebhookEndpoint
from payments.webhooks import addresses, endpoints, signatures
from tests.integration.payments.api import Api, at_once, problem


def put(api: Api, name: str, url: Any = "https://example.com/hook", **fields: Any) -> Any:
    return api.request("PUT", f"/v1/webhook-endpoints/{name}", {"url": url, **fields})


def test_the_first_put_creates_and_the_next_replaces(acme: Api) -> None:
    created = put(acme, "main")
    assert created.status_code == 201
    assert created["Location"] == "/v1/webhook-endpoints/main"
    replaced = put(acme, "main", "http://localhost:8080/other?x=1")
    assert replaced.status_code == 200
    shown = acme.get(created["Location"]).json()
    assert {**shown, "secret": replaced.json()["secret"]} == replaced.json()
    assert WebhookEndpoint.objects.get().url == "http://localhost:8080/other?x=1"


def test_its_secret_is_made_once_and_told_by_each_put_and_by_no_get(acme: Api) -> None:
    secret = put(acme, "main").json()["secret"]
    assert signatures.is_secret(secret)
    assert put(acme, "main", "https://example.com/other").json()["secret"] == secret
    assert put(acme, "second").json()["secret"] != secret
    assert "secret" not in acme.get("/v1/webhook-endpoints/main").json()


def test_a_put_switches_it_off_and_the_next_one_on_again(acme: Api) -> None:
    assert put(acme, "main", enabled=False).json()["enabled"] is False
    assert acme.get("/v1/webhook-endpoints/main").json()["enabled"] is False
    assert put(acme, "main").json()["enabled"] is True


@pytest.mark.parametrize("enabled", ["true", 1, 0, None, [], "on"])
def test_on_and_off_are_true_and_false(acme: Api, enabled: Any) -> None:
    errors = problem(put(acme, "main", enabled=enabled), 400, "invalid_request")["errors"]
    assert list(errors) == ["enabled"]


@pytest.mark.parametrize(("text", "enabled"), [("true", True), ("false", False)])
def test_a_form_spells_them_out(acme: Api, text: str, enabled: bool) -> None:
    answer = acme.request(
        "PUT",
        "/v1/webhook-endpoints/main",
        f"url=https%3A%2F%2Fexample.com&enabled={text}",
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.json()["enabled"] is enabled


def test_a_url_that_leads_inside_is_refused_with_the_reason(
    acme: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "look_up", lambda host, port: ["169.254.169.254"])
    errors = problem(put(acme, "main"), 400, "invalid_request")["errors"]
    assert errors == {"url": ["example.com leads to an address that is not public."]}
    assert not WebhookEndpoint.objects.exists()


def test_a_url_whose_name_has_no_address_yet_is_taken(
    acme: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    monkeypatch.setattr(addresses, "look_up", unknown)
    assert put(acme, "main").status_code == 201


def test_without_the_demos_setting_a_url_is_https(acme: Api, settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {}
    errors = problem(put(acme, "main", "http://example.com/"), 400, "invalid_request")["errors"]
    assert "https" in errors["url"][0]


def test_the_migration_gives_each_endpoint_a_secret_of_its_own(acme: Api, globex: Api) -> None:
    put(acme, "main")
    put(globex, "main")
    WebhookEndpoint.objects.update(secret="")
    with connection.schema_editor() as editor:
        migration_0004().give_secrets(apps, editor)
    found = WebhookEndpoint.objects.values_list("secret", flat=True)
    assert len({it for it in found if signatures.is_secret(it)}) == 2


def migration_0004() -> Any:
    return importlib.import_module("payments.migrations.0004_webhooks")


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
        "https://2130706433/",
        "https://[::1]/",
        "https://example.com:22/",
        "https://example.com/#fragment",
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


def test_a_merchant_has_sixteen_endpoints_at_most_and_can_go_on_writing_those(
    acme: Api, globex: Api
) -> None:
    for number in range(endpoints.MOST):
        assert put(acme, f"e{number}").status_code == 201
    problem(put(acme, "one-more"), 422, "too_many_endpoints")
    assert put(acme, "e0", "https://example.com/other").status_code == 200
    assert put(globex, "main").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_puts_at_once_make_sixteen_endpoints_at_most(acme: Api) -> None:
    for number in range(endpoints.MOST - 1):
        put(acme, f"e{number}")
    answers = at_once(*[lambda number=number: put(acme, f"new{number}") for number in range(6)])
    assert sorted(answer.status_code for answer in answers) == [201] + [422] * 5


@pytest.mark.django_db(transaction=True)
def test_the_same_put_at_once_makes_one_endpoint(acme: Api) -> None:
    answers = at_once(*[lambda: put(acme, "main")] * 4)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert WebhookEndpoint.objects.count() == 1
