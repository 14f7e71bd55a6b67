"""What Stripe tells us: taken when Stripe has signed it, once, whatever its body says the next
time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import stripe
import time_machine
from django.test import Client

from idempotency.models import OutboxMessage
from payments.exceptions import NotSigned
from payments.gateways.events import ReadsEvents
from payments.gateways.stripe import StripeGateway
from tests.integration.gateways.stripe.servers import API_KEY

SECRET = "whsec_of_the_tests"
NAMES = {"reference": "ch_1", "idempotency_key": "k1"}
INTENT = {
    "object": "payment_intent",
    "id": "pi_1",
    "status": "succeeded",
    "amount": 1000,
    "currency": "eur",
    "metadata": NAMES,
}
REFUND = {
    "object": "refund",
    "id": "re_1",
    "status": "succeeded",
    "amount": 400,
    "currency": "eur",
    "metadata": {"reference": "re_1"},
    "payment_intent": "pi_1",
}


def body_of(kind: str, its: dict[str, Any], **others: Any) -> bytes:
    event = {"object": "event", "id": "evt_1", "type": kind, "data": {"object": its}, **others}
    return json.dumps(event, indent=2).encode()


def signed(body: bytes, *, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    stamp = int(time.time() if at is None else at)
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, stamp)
    return {"Stripe-Signature": header}


def read(body: bytes, headers: dict[str, str] | None = None, secret: str = SECRET) -> Any:
    gateway = StripeGateway(api_key=API_KEY, webhook_secret=secret)
    assert isinstance(gateway, ReadsEvents)
    return gateway.read_event(body=body, headers=signed(body) if headers is None else headers)


def test_a_charge_that_succeeded_is_read() -> None:
    event = read(body_of("payment_intent.succeeded", INTENT))
    assert event.id == "evt_1"
    its = event.ended
    assert (its.kind, its.moved, its.reference, its.id) == ("charge", True, "ch_1", "pi_1")
    assert (its.amount, its.currency, its.code) == (1000, "EUR", "")


def test_a_charge_that_failed_is_read_with_the_banks_reason() -> None:
    error = {"code": "card_declined", "decline_code": "lost_card"}
    its = {**INTENT, "status": "requires_payment_method", "last_payment_error": error}
    ended = read(body_of("payment_intent.payment_failed", its)).ended
    assert (ended.kind, ended.moved, ended.code) == ("charge", False, "lost_card")


@pytest.mark.parametrize("kind", ["refund.created", "refund.updated", "charge.refund.updated"])
def test_a_refund_is_read_with_its_charge(kind: str) -> None:
    its = read(body_of(kind, REFUND)).ended
    assert (its.kind, its.moved, its.reference, its.charge) == ("refund", True, "re_1", "pi_1")


@pytest.mark.parametrize(
    "its",
    [
        {**INTENT, "status": "processing"},
        {**INTENT, "metadata": {}},
        {**REFUND, "status": "pending"},
        {"object": "charge", "id": "ch_1", "metadata": NAMES},
        {"object": "payout", "id": "po_1"},
    ],
    ids=["not done", "not ours", "refund not done", "charge", "payout"],
)
def test_what_is_not_done_or_not_ours_says_nothing(its: dict[str, Any]) -> None:
    assert read(body_of("whatever", its)).ended is None


def test_an_altered_body_is_refused() -> None:
    body = body_of("payment_intent.succeeded", INTENT)
    with pytest.raises(NotSigned):
        read(body.replace(b"1000", b"9000"), signed(body))


@pytest.mark.parametrize("seconds", [-301, -86_400])
def test_an_old_signature_is_refused(seconds: int) -> None:
    body = body_of("payment_intent.succeeded", INTENT)
    with pytest.raises(NotSigned):
        read(body, signed(body, at=time.time() + seconds))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Stripe-Signature": ""},
        {"Stripe-Signature": "t=1,v1=é"},
        {"Stripe-Signature": f"t={int(time.time())},v1=é"},
        {"Stripe-Signature": "t=now,v1=00"},
        {"Stripe-Signature": "v1=00"},
        {"Stripe-Signature": "t=" + "9" * 5000 + ",v1=00"},
        signed(b"{}", secret="whsec_of_somebody_else"),
    ],
)
def test_what_nobody_we_know_signed_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(NotSigned):
        read(body_of("payment_intent.succeeded", INTENT), headers)


@pytest.mark.parametrize("body", [b"", b"\xff", b"{}"])
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(NotSigned):
        read(body, {"Stripe-Signature": "t=1,v1=00"})


def test_without_a_secret_nothing_is_taken() -> None:
    body = body_of("payment_intent.succeeded", INTENT)
    with pytest.raises(NotSigned):
        read(body, signed(body, secret=""), secret="")


# --- Through the product


@pytest.fixture
def _chosen(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = {
        "BACKEND": "payments.gateways.stripe.StripeGateway",
        "API_KEY": API_KEY,
        "WEBHOOK_SECRET": SECRET,
    }


def post(body: bytes, headers: dict[str, str]) -> Any:
    return Client().generic("POST", "/v1/gateway-events", body, "application/json", headers=headers)


@pytest.mark.postgresql
@pytest.mark.django_db
@pytest.mark.usefixtures("_chosen")
def test_an_event_that_is_sent_again_is_recorded_once_though_its_body_has_changed() -> None:
    for waiting in (2, 1):
        body = body_of("payment_intent.succeeded", INTENT, pending_webhooks=waiting)
        assert post(body, signed(body)).status_code == 204
    message = OutboxMessage.objects.get(channel="gateway-events")
    assert message.payload["reference"] == "ch_1"


@pytest.mark.postgresql
@pytest.mark.django_db
@pytest.mark.usefixtures("_chosen")
def test_a_signed_event_played_back_a_day_later_is_refused() -> None:
    body = body_of("payment_intent.succeeded", INTENT)
    headers = signed(body)
    assert post(body, headers).status_code == 204
    with time_machine.travel(time.time() + 86_400):
        assert post(body, headers).status_code == 401
    assert OutboxMessage.objects.filter(channel="gateway-events").count() == 1
