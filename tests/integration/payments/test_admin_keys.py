"""From a key to the money it moved and back, and what of the product is in the queue."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from payments.models import Charge, LedgerDifference, LedgerTransaction, Refund, Transfer
from tests.integration.payments.api import Api
from tests.plugins.gateway import GatewayProcess

QUEUE = "/admin/idempotency/doubt/"


def key_page(key_id: int | None) -> str:
    return reverse("admin:idempotency_idempotencykey_change", args=[key_id])


def page_of(item: Any) -> str:
    return reverse(f"admin:payments_{item._meta.model_name}_change", args=[item.pk])


def text_of(client: Client, path: str) -> str:
    main = client.get(path).content.decode().split("<main")[1].split("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


@pytest.fixture
def moved(acme: Api, globex: Api, bank: GatewayProcess) -> list[Charge | Refund | Transfer]:
    """A charge, a refund and a transfer, each under a key of its own."""
    charge = acme.charge().json()["id"]
    acme.refund(charge, amount=100)
    acme.transfer(globex, 50)
    return [Charge.objects.get(), Refund.objects.get(), Transfer.objects.get()]


def test_a_key_the_money_and_its_postings_link_to_each_other(
    moved: list[Any], admin_client: Client
) -> None:
    for movement in moved:
        name = movement._meta.model_name
        there = admin_client.get(key_page(movement.idempotency_key_id)).content.decode()
        assert page_of(movement) in there
        postings = LedgerTransaction.objects.filter(**{name: movement})
        assert postings
        for posting in postings:
            assert page_of(posting) in there
            posting_page = admin_client.get(page_of(posting)).content.decode()
            assert key_page(movement.idempotency_key_id) in posting_page
        assert key_page(movement.idempotency_key_id) in (
            admin_client.get(page_of(movement)).content.decode()
        )


def test_the_key_page_tells_the_amounts(moved: list[Any], admin_client: Client) -> None:
    page = text_of(admin_client, key_page(moved[0].idempotency_key_id))
    assert f"{moved[0].public_id} 10.00 EUR · succeeded · {moved[0].gateway_reference}" in page
    assert "gateway clearing EUR -1000" in page


def test_who_may_see_keys_sees_only_the_money_he_may_see(moved: list[Any]) -> None:
    user = User.objects.create_user("viewer", is_staff=True)
    client = Client()
    for permissions, sees_charge, sees_ledger in (
        (["view_idempotencykey"], False, False),
        (["view_idempotencykey", "view_charge"], True, False),
        (["view_idempotencykey", "view_charge", "view_ledgertransaction"], True, True),
    ):
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        page = text_of(client, key_page(moved[0].idempotency_key_id))
        assert ("Money" in page) is sees_charge
        assert ("gateway clearing" in page) is sees_ledger


def test_money_that_no_key_asked_for_says_so(acme: Api, admin_client: Client) -> None:
    charge = Charge.objects.create(merchant=acme.merchant, amount=1, currency="EUR")
    assert "Idempotency key: -" in text_of(admin_client, page_of(charge))


def test_an_operation_in_doubt_shows_its_pending_charge_and_amount(
    acme: Api, start_gateway: Any, settings: Any, admin_client: Client
) -> None:
    gateway = start_gateway()
    gateway.control(dedupe=False)
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "DEDUPES": False}
    acme.charge("tok_answer_lost", key="k")
    charge = Charge.objects.get()
    decide = f"{QUEUE}{charge.idempotency_key_id}/change/"
    assert "10.00 EUR" in text_of(admin_client, QUEUE)
    page = text_of(admin_client, decide)
    assert f"{charge.public_id} 10.00 EUR · pending" in page
    assert "Nothing in the ledger." in page


def test_differences_to_the_gateways_ledger_are_in_the_queue(
    admin_client: Client, db: None
) -> None:
    assert "0 differences to the gateway's ledger: show them" in text_of(admin_client, QUEUE)
    now = timezone.now()
    difference = LedgerDifference.objects.create(
        kind="double", movement="charge", reference="ch_1", moved_at=now, found_at=now
    )
    page = admin_client.get(QUEUE).content.decode()
    assert "1 difference to the gateway" in page
    link = re.search(r'href="([^"]*ledgerdifference/\?[^"]*)"', page)
    assert link is not None
    assert admin_client.get(unescape(link[1])).context["cl"].result_list[0] == difference
    difference.handled_at = now - timedelta(days=1)
    difference.save()
    assert "0 differences" in text_of(admin_client, QUEUE)


@pytest.mark.parametrize("model", [Charge, Refund, Transfer])
def test_the_money_of_a_key_is_found_by_an_index(model: Any, db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        plan = model.objects.filter(idempotency_key_id=7).order_by("pk")[:20].explain()
    assert f"payments_{model._meta.model_name}_key" in plan
