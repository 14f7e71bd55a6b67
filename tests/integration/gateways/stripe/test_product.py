"""The whole operation with Stripe as the gateway: from the API to Stripe's books and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from idempotency.reconciliation import reconcile_operations
from tests.integration.gateways.stripe.servers import API_KEY, Front, Localstripe, StripeRules
from tests.plugins.fault_proxy import Fault

if TYPE_CHECKING:
    from tests.integration.payments.api import Api

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]


@pytest.fixture
def shop(settings: Any, stripe_rules: StripeRules) -> Api:
    """A merchant whose money Stripe moves."""
    from tests.integration.payments.api import new_api

    settings.PAYMENTS_GATEWAY = {
        "BACKEND": "payments.gateways.stripe.StripeGateway",
        "URL": stripe_rules.url,
        "API_KEY": API_KEY,
        "CALLS": 3,
    }
    return new_api("Shop")


def test_a_charge_and_its_refund_move_the_money_there_and_here(
    shop: Api, localstripe: Localstripe
) -> None:
    charge = shop.charge().json()
    (intent,) = localstripe.intents(charge["id"])
    assert charge["gateway_reference"] == intent["id"]
    assert (intent["amount"], intent["currency"], intent["status"]) == (1000, "eur", "succeeded")
    refund = shop.refund(charge["id"], amount=400)
    assert refund.status_code == 201
    (its,) = localstripe.refunds(refund.json()["id"])
    assert its["amount"] == 400
    assert shop.balance() == 600


def test_a_merchant_charges_what_stripe_calls_a_payment_method(
    shop: Api, localstripe: Localstripe
) -> None:
    charge = shop.charge("pm_card_visa")
    assert charge.status_code == 201
    assert len(localstripe.intents(charge.json()["id"])) == 1


def test_a_retry_gets_the_first_answer_and_stripe_is_not_asked_again(
    shop: Api, stripe_rules: StripeRules
) -> None:
    first, again = shop.charge(key="one"), shop.charge(key="one")
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    assert len(stripe_rules.keys) == 1


def test_a_declined_card_is_a_402_and_moves_nothing(shop: Api, localstripe: Localstripe) -> None:
    answer = shop.charge("tok_declined")
    assert answer.status_code == 402
    assert answer.json()["decline_code"] == "card_declined"
    assert shop.balance() == 0


def test_a_lost_answer_is_nobodys_loss(
    shop: Api, stripe_rules: StripeRules, localstripe: Localstripe
) -> None:
    stripe_rules.plan(Fault.LOSE)
    answer = shop.charge()
    assert answer.status_code == 201
    assert len(localstripe.intents(answer.json()["id"])) == 1
    assert shop.balance() == 1000


def test_what_stripe_does_not_answer_is_pending_and_the_retry_finds_it(
    shop: Api, stripe_rules: StripeRules, localstripe: Localstripe
) -> None:
    stripe_rules.choose = lambda head: Fault.LOSE
    pending = shop.charge(key="one")
    assert (pending.status_code, pending.json()["code"]) == (503, "outcome_pending")
    stripe_rules.choose = lambda head: Fault.PASS
    charge = shop.charge(key="one").json()
    assert charge["status"] == "succeeded"
    assert len(localstripe.intents(charge["id"])) == 1
    assert shop.balance() == 1000


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_known_without_keys_is_in_doubt_and_settled_by_stripes_books(
    shop: Api, bare: Front, localstripe: Localstripe, settings: Any
) -> None:
    settings.PAYMENTS_GATEWAY |= {"URL": bare.url, "DEDUPES": False}
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"RECONCILE_AFTER": 0}
    bare.choose = lambda head: Fault.LOSE
    doubtful = shop.charge(key="one")
    assert (doubtful.status_code, doubtful.json()["code"]) == (409, "outcome_in_doubt")
    bare.choose = lambda head: Fault.PASS
    assert reconcile_operations().done == 1
    charge = shop.charge(key="one").json()
    assert charge["status"] == "succeeded"
    assert [it["id"] for it in localstripe.intents(charge["id"])] == [charge["gateway_reference"]]
    assert shop.balance() == 1000
