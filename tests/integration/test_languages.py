"""Who reads chooses the language; what programs read is the same in each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation

from payments import merchants
from payments.models import Merchant

GERMAN = {"accept-language": "de-DE,de;q=0.9,en;q=0.5"}


@pytest.fixture(autouse=True)
def afterwards_as_before() -> Iterator[None]:
    # A request leaves its language to the thread; a server's next request sets its own.
    with translation.override(translation.get_language()):
        yield


@pytest.mark.django_db
def test_an_operators_browser_chooses_the_language_of_the_admin(client: Client) -> None:
    client.force_login(User.objects.create_superuser("maria"))
    html = client.get("/admin/", headers=GERMAN).content.decode()
    assert '<html lang="de"' in html
    assert "Idempotenzschlüssel" in html
    assert "Idempotenzschlüssel" not in client.get("/admin/").content.decode()


def test_the_page_of_a_problem_comes_in_the_readers_language(client: Client) -> None:
    html = client.get("/problems/idempotency_key_in_use/", headers=GERMAN).content.decode()
    assert '<html lang="de"' in html
    assert "<h1>Idempotenzschlüssel in Gebrauch</h1>" in html
    assert "code idempotency_key_in_use" in html.lower()


def test_a_language_that_nobody_has_translated_is_english(client: Client) -> None:
    html = client.get("/problems/idempotency_key_in_use/", headers={"accept-language": "fr"})
    assert "<h1>Idempotency key in use</h1>" in html.content.decode()


@pytest.mark.postgresql
@pytest.mark.django_db
def test_the_title_of_a_problem_is_for_people_and_its_code_for_programs(client: Client) -> None:
    _, secret = merchants.issue_api_key(merchant=Merchant.objects.create(name="Acme"))
    headers = {"Authorization": f"Bearer {secret}"}
    english = client.post("/v1/transfers", headers=headers)
    german = client.post("/v1/transfers", headers=headers | GERMAN)
    assert (english.status_code, german.status_code) == (400, 400)
    assert english.json()["title"] == "Idempotency key missing"
    assert german.json() == english.json() | {"title": "Idempotenzschlüssel fehlt"}
    assert "Accept-Language" in german["Vary"]
