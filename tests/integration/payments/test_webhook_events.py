"""What merchants are told, and that it is written with the change or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from idempotency.models import OutboxMessage
from payments import charges, refunds
from payments.models import Charge, WebhookEndpoint
from tests.integration.payments.api import Api
from tests.plugins.gateway import GatewayProcess

pytestmark = pytest.mark.django_db


@pytest.fixture
def hook(acme: Api) -> WebhookEndpoint:
    return endpoint(acme, "main")


def endpoint(api: Api, name: str, **fields: Any) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(
        merchant=api.merchant, endpoint_id=name, url="https://example.com/", **fields
    )


def told(to: WebhookEndpoint) -> list[tuple[str, dict[str, Any]]]:
    """Type and data of each message to an endpoint, oldest first."""
    messages = OutboxMessage.objects.filter(channel="webhooks", destination=to.destination)
    payloads = messages.order_by("pk").values_list("payload", flat=True)
    return [(it["type"], it["data"]) for it in payloads]


def test_a_charge_and_its_refund_are_told_as_the_api_shows_them(
    acme: Api, hook: WebhookEndpoint, bank: GatewayProcess
) -> None:
    charge = acme.charge().json()
    refund = acme.refund(charge["id"]).json()
    assert told(hook) == [("charge.succeeded", charge), ("refund.succeeded", refund)]


def test_a_decline_is_told_once_though_the_request_is_repeated(
    acme: Api, hook: WebhookEndpoint, bank: GatewayProcess
) -> None:
    declined = acme.charge("tok_declined", key="k1").json()
    acme.charge("tok_declined", key="k1")
    ((kind, data),) = told(hook)
    assert (kind, data["id"], data["decline_code"]) == (
        "charge.declined",
        declined["charge"],
        "card_declined",
    )


def test_a_refund_that_failed_is_told(acme: Api, hook: WebhookEndpoint) -> None:
    with transaction.atomic():
        charge = charges.create_pending(merchant=acme.merchant, amount=5, currency="EUR")
        charges.succeed(public_id=charge.public_id, gateway_reference="g")
        refund = refunds.create_pending(
            merchant=acme.merchant, charge_id=charge.public_id, amount=5
        )
        refunds.fail(public_id=refund.public_id, code="no")
    kind, data = told(hook)[-1]
    assert (kind, data["status"], data["failure_code"]) == ("refund.failed", "failed", "no")


def test_a_transfer_is_told_to_both_sides_and_to_nobody_else(
    acme: Api, globex: Api, initech: Api, hook: WebhookEndpoint
) -> None:
    other, third = endpoint(globex, "main"), endpoint(initech, "main")
    acme.fund(10)
    transfer = acme.transfer(globex, 10).json()
    assert told(hook) == told(other) == [("transfer.created", transfer)]
    assert told(third) == []


def test_each_enabled_endpoint_gets_a_message_of_its_own(
    acme: Api, hook: WebhookEndpoint, bank: GatewayProcess
) -> None:
    second, off = endpoint(acme, "second"), endpoint(acme, "off", enabled=False)
    acme.charge()
    assert [len(told(it)) for it in (hook, second, off)] == [1, 1, 0]
    assert len(set(OutboxMessage.objects.values_list("message_id", flat=True))) == 2


def test_nothing_is_told_of_what_was_rolled_back(acme: Api, hook: WebhookEndpoint) -> None:
    with transaction.atomic():
        charge = charges.create_pending(merchant=acme.merchant, amount=5, currency="EUR")
        charges.succeed(public_id=charge.public_id, gateway_reference="g")
        assert len(told(hook)) == 1
        transaction.set_rollback(True)
    assert told(hook) == []
    assert not Charge.objects.exists()
