"""Answers that are lost on their way from a provider that ignores keys.

localstripe does what it is told as often as it is told. A client that repeats what it does not know
the end of charges again each time; ours asks first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
import stripe

from idempotency.operations import Done, NotSent, Unknown
from payments.gateways.stripe import StripeGateway
from tests.integration.gateways.stripe.servers import API_KEY, Front, Localstripe, StripeRules
from tests.plugins.fault_proxy import Fault

Connect = Callable[..., StripeGateway]


@pytest.fixture
def reference() -> str:
    return f"ch_{uuid.uuid4().hex}"


def charge_by_the_sdk(url: str, reference: str) -> None:
    """A charge as the SDK makes it, with the two retries that its manual recommends."""
    client = stripe.StripeClient(API_KEY, base_addresses={"api": url}, max_network_retries=2)
    client.v1.payment_intents.create(
        {
            "amount": 1000,
            "currency": "eur",
            "payment_method": "pm_card_visa",
            "confirm": True,
            "metadata": {"reference": reference},
        },
        {"idempotency_key": f"key of {reference}"},
    )


def lose_charges(proxy: Front) -> None:
    """Every charge is made, and no answer to one arrives; questions are answered."""
    proxy.choose = lambda head: Fault.LOSE if head.startswith(b"POST") else Fault.PASS


def test_the_sdks_retries_make_three_intents(
    bare: Front, localstripe: Localstripe, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe.HTTPClient, "_sleep_time_seconds", lambda *_: 0.0)
    lose_charges(bare)
    with pytest.raises(stripe.APIConnectionError):
        charge_by_the_sdk(bare.url, reference)
    assert [it["status"] for it in localstripe.intents(reference)] == ["succeeded"] * 3


@pytest.mark.parametrize("dedupes", [True, False], ids=["trusting the key", "trusting nothing"])
def test_ours_make_one_and_know_it(
    bare: Front, localstripe: Localstripe, connect_stripe: Connect, reference: str, dedupes: bool
) -> None:
    lose_charges(bare)
    outcome = connect_stripe(bare.url, dedupes=dedupes).charge(
        amount=1000, currency="EUR", source="tok_visa", reference=reference, key=reference
    )
    (intent,) = localstripe.intents(reference)
    assert isinstance(outcome, Done)
    assert outcome.result["id"] == intent["id"]
    assert len(bare.keys) == 1


def test_ours_give_back_once(
    bare: Front, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(bare.url)
    charge = gateway.charge(
        amount=1000, currency="EUR", source="tok_visa", reference=reference, key=reference
    )
    assert isinstance(charge, Done)
    lose_charges(bare)
    refund = gateway.refund(
        charge=charge.result["id"], amount=400, reference=f"re_{reference}", key=f"re{reference}"
    )
    assert isinstance(refund, Done)
    assert [it["id"] for it in localstripe.refunds(f"re_{reference}")] == [refund.result["id"]]


def test_without_keys_what_cannot_be_found_is_not_sent_again(
    bare: Front, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    """It may still be on its way: the look-up says what is there now."""
    gateway = connect_stripe(bare.url, dedupes=False)
    bare.plan(Fault.RESET)
    outcome = gateway.charge(
        amount=1000, currency="EUR", source="tok_visa", reference=reference, key=reference
    )
    assert isinstance(outcome, Unknown)
    assert localstripe.intents(reference) == []
    assert isinstance(gateway.find_charge(reference=reference, key=reference), NotSent)


def test_a_key_that_is_forgotten_between_two_attempts_charges_once(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    def lose_and_forget(head: bytes) -> Fault:
        stripe_rules.forget()
        return Fault.LOSE if head.startswith(b"POST") else Fault.PASS

    stripe_rules.choose = lose_and_forget
    outcome = connect_stripe(stripe_rules.url).charge(
        amount=1000, currency="EUR", source="tok_visa", reference=reference, key=reference
    )
    assert isinstance(outcome, Done)
    assert len(localstripe.intents(reference)) == 1
