"""The admin of the product: everything to see, nothing to change, nothing slow."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from payments.models import (
    Charge,
    LedgerAccount,
    LedgerDifference,
    LedgerTransaction,
    Refund,
    WebhookEndpoint,
)
from tests.integration.payments.api import Api
from tests.plugins.gateway import GatewayProcess

MODELS = list(apps.get_app_config("payments").get_models())


def url(model: type[Model], page: str, *arguments: Any) -> str:
    return reverse(f"admin:payments_{model._meta.model_name}_{page}", args=arguments)


@pytest.fixture
def story(acme: Api, globex: Api, bank: GatewayProcess) -> str:
    """One of everything; the id of the charge."""
    charge: str = acme.charge().json()["id"]
    acme.refund(charge, amount=100)
    acme.transfer(globex, 50)
    WebhookEndpoint.objects.create(merchant=acme.merchant, endpoint_id="x", url="https://a/")
    LedgerDifference.objects.create(
        kind="double", movement="charge", moved_at=timezone.now(), found_at=timezone.now()
    )
    return charge


@pytest.mark.parametrize("model", MODELS)
def test_every_list_and_page_opens(story: str, admin_client: Client, model: Any) -> None:
    assert admin_client.get(url(model, "changelist")).status_code == 200
    page = admin_client.get(url(model, "change", model.objects.first().pk))
    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()


@pytest.mark.parametrize("model", MODELS)
def test_nothing_can_be_added_changed_or_deleted(
    story: str, admin_client: Client, model: Any
) -> None:
    item = model.objects.first().pk
    assert admin_client.get(url(model, "add")).status_code == 403
    assert admin_client.post(url(model, "change", item), {}).status_code == 403
    assert admin_client.post(url(model, "delete", item), {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("model", MODELS)
def test_no_list_counts_its_whole_table(story: str, admin_client: Client, model: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(url(model, "changelist"))
    counts = [it["sql"] for it in queries.captured_queries if "COUNT(" in it["sql"]]
    assert counts
    assert all("LIMIT 1000" in sql for sql in counts)


def test_a_long_list_is_counted_no_further_than_a_bound(
    acme: Api, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("payments.admin.BoundedPaginator.limit", 3)
    Charge.objects.bulk_create(
        Charge(merchant=acme.merchant, amount=1, currency="EUR") for _ in range(5)
    )
    page = admin_client.get(url(Charge, "changelist"))
    assert page.context["cl"].result_count == 3


def test_a_charge_and_its_postings_link_to_each_other(story: str, admin_client: Client) -> None:
    charge = Charge.objects.get(public_id=story)
    posting = LedgerTransaction.objects.get(charge=charge)
    there = admin_client.get(url(Charge, "change", charge.pk)).content.decode()
    assert url(LedgerTransaction, "change", posting.pk) in there
    assert url(Refund, "change", charge.refunds.get().pk) in there
    back = admin_client.get(url(LedgerTransaction, "change", posting.pk)).content.decode()
    assert url(Charge, "change", charge.pk) in back


def test_an_account_leads_to_its_entries(story: str, admin_client: Client, acme: Api) -> None:
    account = LedgerAccount.objects.get(merchant=acme.merchant)
    page = admin_client.get(url(LedgerAccount, "change", account.pk)).content.decode()
    found = re.search(r'href="([^"]*ledgerentry/\?[^"]*)"', page)
    assert found is not None
    entries = admin_client.get(found[1])
    assert entries.status_code == 200
    assert entries.context["cl"].result_count == account.entries.count() == 3


def test_a_charge_is_found_by_its_id(story: str, admin_client: Client) -> None:
    Charge.objects.create(merchant=Charge.objects.get().merchant, amount=1, currency="EUR")
    found = admin_client.get(url(Charge, "changelist"), {"q": story}).context["cl"].result_list
    assert [charge.public_id for charge in found] == [story]


def test_amounts_are_shown_as_people_write_them(story: str, admin_client: Client) -> None:
    assert "10.00 EUR" in admin_client.get(url(Charge, "changelist")).content.decode()


def test_the_digest_of_a_key_is_not_shown(story: str, acme: Api, admin_client: Client) -> None:
    key = acme.merchant.api_keys.get()
    page = admin_client.get(url(type(key), "change", key.pk)).content.decode()
    assert key.prefix in page
    assert key.digest not in page


def test_an_endpoint_leads_to_its_messages_and_keeps_its_secret(
    story: str, acme: Api, globex: Api, admin_client: Client
) -> None:
    endpoint = WebhookEndpoint.objects.get()
    WebhookEndpoint.objects.create(merchant=globex.merchant, endpoint_id="x", url="https://a/")
    acme.transfer(globex, 1)  # told to both
    page = admin_client.get(url(WebhookEndpoint, "change", endpoint.pk)).content.decode()
    assert endpoint.secret not in page
    found = re.search(r'href="([^"]*outboxmessage/\?[^"]*)"', page)
    assert found is not None
    messages = admin_client.get(html.unescape(found[1])).context["cl"].result_list
    assert [it.destination for it in messages] == [endpoint.destination]


def test_every_model_is_registered() -> None:
    assert all(admin.site.is_registered(model) for model in MODELS)
