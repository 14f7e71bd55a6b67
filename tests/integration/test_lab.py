"""The retry lab's server half: what it gives away, to whom, and what it says of the gateway.

`acceptance/test_lab_browser.py` plays its steps.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from config.lab.steps import STEPS
from tests.integration.test_settings import PRODUCTION, manage
from tests.plugins.gateway import GatewayProcess

pytestmark = pytest.mark.postgresql  # whose triggers the seeded ledger needs

OUTSIDE_THE_DEMO = """
import importlib, sys
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

settings.SECURE_SSL_REDIRECT = False
print(Client().get("/lab/", headers={"host": "api.example.com"}).status_code)
print([name for name in sys.modules if name.startswith("config.lab")])
try:
    importlib.import_module("config.lab.views")
except ImproperlyConfigured as refusal:
    print(refusal)
"""


@pytest.fixture
def seeded(db: None) -> None:
    call_command("seed_demo", verbosity=0)


def test_outside_the_demo_there_is_no_lab_and_nothing_of_it_can_be_imported() -> None:
    done = manage("shell", "--verbosity", "0", "-c", OUTSIDE_THE_DEMO, **PRODUCTION)
    status, imported, refusal = done.stdout.splitlines()
    assert (status, imported) == ("404", "[]"), done.stderr
    assert "it needs DEMO=1" in refusal


@pytest.mark.usefixtures("seeded")
def test_the_page_holds_every_step_once_and_its_meaning_in_one_sentence(client: Client) -> None:
    html = client.get("/lab/").content.decode()
    assert re.findall(r'data-step="(\w+)"', html) == [step.name for step in STEPS]
    for step in STEPS:
        assert f"<strong>{step.label}.</strong> {step.meaning}" in html
        assert step.meaning.count(".") == 1
        assert step.meaning.endswith(".")


@pytest.mark.usefixtures("seeded")
def test_the_page_allows_no_script_but_the_projects_own_files(client: Client) -> None:
    answer = client.get("/lab/")
    policy = answer["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    html = answer.content.decode()
    assert (
        re.findall(r'<(?:script|link)[^>]*(?:src|href)="((?!/static/lab/|data:,)[^"]*)"', html)
        == []
    )
    assert re.search(r"\son\w+=|\sstyle=|<style", html) is None


@pytest.mark.usefixtures("seeded")
def test_without_faults_the_steps_that_break_something_say_what_they_need(
    client: Client, settings: Any
) -> None:
    settings.DEMO_FAULTS = False
    html = client.get("/lab/").content.decode()
    assert html.count(" disabled>") == sum(step.breaks for step in STEPS) == 2
    assert html.count("Needs DEMO_FAULTS=1.") == 2
    settings.DEMO_FAULTS = True
    assert " disabled>" not in client.get("/lab/").content.decode()


@pytest.mark.django_db
def test_a_database_without_the_demos_merchants_is_told_what_to_do(client: Client) -> None:
    answer = client.get("/lab/")
    assert answer.status_code == 503
    html = answer.content.decode()
    assert "manage.py seed_demo" in html
    assert "sk_test" not in html


def test_the_ledger_is_the_gateways_own_from_a_moment_or_an_entry_on(
    client: Client, settings: Any, gateway: GatewayProcess
) -> None:
    settings.GATEWAY_URL = gateway.url
    gateway.charge("tok_declined")
    first, second = (gateway.charge(key=key, reference=key).json() for key in ("k1", "k2"))

    def ids(**query: str) -> list[str]:
        return [entry["id"] for entry in client.get("/lab/ledger", query).json()["entries"]]

    assert ids() == [first["id"], second["id"]]
    assert ids(since=second["created"]) == [second["id"]]
    assert ids(after=first["id"]) == [second["id"]]


def test_a_gateway_that_does_not_answer_is_not_taken_for_one_that_moved_nothing(
    client: Client, settings: Any, gateway: GatewayProcess
) -> None:
    settings.GATEWAY_URL = gateway.url
    assert client.get("/lab/ledger", {"since": "yesterday"}).status_code == 503
    gateway.kill()
    answer = client.get("/lab/ledger")
    assert (answer.status_code, answer.json()) == (503, {"entries": None})


@pytest.mark.parametrize("path", ["/lab/", "/lab/ledger"])
def test_the_lab_only_shows(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
