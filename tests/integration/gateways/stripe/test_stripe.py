"""What only the adapter to Stripe has to get right."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import stripe
from django.core.exceptions import ImproperlyConfigured

from idempotency.client import Deadline
from idempotency.http.deadlines import governing
from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways import stripe_books
from payments.gateways.base import MovementsUnknown
from payments.gateways.choice import get_gateway
from payments.gateways.stripe import KEPT, StripeGateway
from tests.integration.gateways.benches import broken, busy
from tests.integration.gateways.stripe.servers import API_KEY, Ending, Localstripe, StripeRules
from tests.plugins.fault_proxy import Fault

Connect = Callable[..., StripeGateway]

BACKEND = "payments.gateways.stripe.StripeGateway"


@pytest.fixture
def reference() -> str:
    return f"ch_{uuid.uuid4().hex}"


def charge(gateway: StripeGateway, reference: str, source: str = "tok_visa") -> Outcome:
    return gateway.charge(
        amount=1000, currency="EUR", source=source, reference=reference, key=f"k{reference}"
    )


def done(outcome: Outcome) -> str:
    assert isinstance(outcome, Done), outcome
    return str(outcome.result["id"])


# --- Keys


def test_three_attempts_are_three_requests_under_one_key(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str
) -> None:
    stripe_rules.end(busy(), busy(), busy(), busy())
    assert isinstance(charge(connect_stripe(stripe_rules.url), reference), NotSent)
    assert stripe_rules.keys == [f"k{reference}"] * 3


def test_a_stored_error_is_looked_up_and_not_asked_for_again(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url)
    stripe_rules.end(broken(executed=True))
    first = done(charge(gateway, reference))
    # The key answers 500 from now on; the money has moved all the same.
    assert done(charge(gateway, reference)) == first
    assert len(stripe_rules.keys) == 2
    assert len(localstripe.intents(reference)) == 1


def test_a_stored_error_in_place_of_the_work_stays_unknown(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url)
    stripe_rules.end(broken(executed=False))
    assert isinstance(charge(gateway, reference), Unknown)
    assert len(stripe_rules.keys) == 1
    assert isinstance(charge(gateway, reference), Unknown)
    assert isinstance(gateway.find_charge(reference=reference, key=""), NotSent)
    assert localstripe.intents(reference) == []


def test_a_charge_that_another_worker_is_making_is_waited_for(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    stripe_rules.gate.clear()
    gateway = connect_stripe(stripe_rules.url)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(charge, gateway, reference)
        assert stripe_rules.arrived.wait(30)
        # All of its attempts hear that the key is in use, and there is nothing to be found yet.
        assert isinstance(charge(gateway, reference), Unknown)
        stripe_rules.gate.set()
        assert done(first.result(30)) == done(charge(gateway, reference))
    assert len(localstripe.intents(reference)) == 1


def test_stripe_keeps_a_key_for_a_day() -> None:
    assert timedelta(hours=24) == KEPT
    assert StripeGateway(api_key=API_KEY).dedupes_for == KEPT


# --- Steps


def test_manual_capture_authorises_and_then_moves_the_money(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url, capture="manual")
    intent = done(charge(gateway, reference))
    assert [it["id"] for it in localstripe.intents(reference)] == [intent]
    key = f"k{reference}"
    assert stripe_rules.keys == [key, f"{key}-confirm", f"{key}-capture"]


@pytest.mark.parametrize("step", [0, 1, 2], ids=["create", "confirm", "capture"])
def test_each_step_whose_answer_is_lost_is_taken_once(
    stripe_rules: StripeRules,
    localstripe: Localstripe,
    connect_stripe: Connect,
    reference: str,
    step: int,
) -> None:
    def lose(head: bytes) -> Fault:
        its = head.startswith(b"POST") and len(stripe_rules.keys) == step
        return Fault.LOSE if its else Fault.PASS

    stripe_rules.choose = lose
    gateway = connect_stripe(stripe_rules.url, capture="manual")
    intent = done(charge(gateway, reference))
    assert [it["id"] for it in localstripe.intents(reference)] == [intent]
    assert len(stripe_rules.keys) == 3


def test_a_capture_that_is_turned_away_is_not_withdrawn(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    """The payer's money is held by then: the call has to be made again, under its key."""
    gateway = connect_stripe(stripe_rules.url, capture="manual")

    def turn_away(head: bytes) -> Fault:
        if b"/capture" in head:
            stripe_rules.end(busy())
        return Fault.PASS

    stripe_rules.choose = turn_away
    assert isinstance(charge(gateway, reference), Unknown)
    assert isinstance(gateway.find_charge(reference=reference, key=""), Unknown)
    stripe_rules.choose = lambda head: Fault.PASS
    intent = done(charge(gateway, reference))
    assert [it["id"] for it in localstripe.intents(reference)] == [intent]


def test_what_the_payer_would_have_to_confirm_is_cancelled(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    card = {"number": "4000002500003155", "exp_month": 1, "exp_year": 2040, "cvc": "123"}
    its = {f"card[{name}]": value for name, value in card.items()}
    method = localstripe.post("payment_methods", type="card", **its)
    outcome = charge(connect_stripe(stripe_rules.url), reference, method["id"])
    assert isinstance(outcome, Refused)
    assert outcome.result["code"] == "authentication_required"
    assert [it["status"] for it in localstripe.intents(reference)] == ["canceled"]


@pytest.mark.parametrize("status", ["processing", "requires_source_of_the_future"])
def test_an_intent_that_is_not_done_is_unknown_and_looked_at_anew(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str, status: str
) -> None:
    """A key answers for a day how it was the first time."""
    gateway = connect_stripe(stripe_rules.url)
    its = {"object": "payment_intent", "status": status}
    stripe_rules.end(Ending(200, {**its, "id": "pi_unheard_of"}))
    assert isinstance(charge(gateway, f"{reference}1"), Unknown)
    finished = done(charge(gateway, f"{reference}2"))
    stripe_rules.end(Ending(200, {**its, "id": finished}))
    assert done(charge(gateway, f"{reference}3")) == finished


def test_a_refund_that_is_pending_is_unknown_and_looked_at_anew(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url)
    intent = done(charge(gateway, reference))

    def refund(number: int) -> Outcome:
        its = f"re{number}_{reference}"
        return gateway.refund(charge=intent, amount=1, reference=its, key=its)

    stripe_rules.end(Ending(200, {"object": "refund", "status": "pending", "id": "re_unheard_of"}))
    assert isinstance(refund(1), Unknown)
    finished = done(refund(2))
    stripe_rules.end(Ending(200, {"object": "refund", "status": "pending", "id": finished}))
    assert done(refund(3)) == finished


# --- Looking up


def test_what_is_older_than_the_list_reaches_is_searched(
    stripe_rules: StripeRules, localstripe: Localstripe, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url)
    intent = done(charge(gateway, reference))
    localstripe.post(f"payment_intents/{intent}", created=int(time.time()) - 3 * 86_400)
    assert done(gateway.find_charge(reference=reference, key="")) == intent


def test_a_long_list_is_read_page_by_page(
    stripe_rules: StripeRules,
    localstripe: Localstripe,
    connect_stripe: Connect,
    reference: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stripe_books, "PAGE", 2)
    gateway = connect_stripe(stripe_rules.url)
    began = datetime.now(UTC) - timedelta(seconds=1)
    intents = [done(charge(gateway, f"{reference}{number}")) for number in range(5)]
    assert done(gateway.find_charge(reference=f"{reference}0", key="")) == intents[0]
    later = datetime.now(UTC) + timedelta(seconds=1)
    listed = [it.id for it in gateway.movements(since=began, until=later)]
    assert set(intents) <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_list_that_is_too_long_says_nothing(
    stripe_rules: StripeRules,
    connect_stripe: Connect,
    reference: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stripe_books, "PAGE", 1)
    monkeypatch.setattr(stripe_books, "LOOK_UP_PAGES", 1)
    monkeypatch.setattr(stripe_books, "MOVEMENT_PAGES", 1)
    gateway = connect_stripe(stripe_rules.url)
    first = done(charge(gateway, reference))
    done(charge(gateway, f"{reference}x"))
    assert isinstance(gateway.find_charge(reference=reference, key=""), Unknown)
    now = datetime.now(UTC)
    with pytest.raises(MovementsUnknown):
        list(gateway.movements(since=now - timedelta(minutes=1), until=now + timedelta(minutes=1)))
    assert first


# --- What it is given


def test_a_payment_method_of_stripes_is_passed_on(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str
) -> None:
    done(charge(connect_stripe(stripe_rules.url), reference, "pm_card_visa"))


@pytest.mark.parametrize("currency", ["ISK", "MGA", "UGX"])
def test_a_currency_that_stripe_counts_otherwise_is_refused_unasked(
    stripe_rules: StripeRules, connect_stripe: Connect, currency: str
) -> None:
    outcome = connect_stripe(stripe_rules.url).charge(
        amount=100, currency=currency, source="tok_visa", reference="ch_1", key="k1"
    )
    assert isinstance(outcome, Refused)
    assert outcome.result["code"] == "currency_not_supported"
    assert stripe_rules.requests == 0


def test_an_api_key_that_stripe_does_not_know_is_not_sent(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str
) -> None:
    gateway = connect_stripe(stripe_rules.url, api_key="of nobody")
    assert isinstance(charge(gateway, reference), NotSent)
    assert isinstance(gateway.find_charge(reference=reference, key=""), Unknown)
    assert len(stripe_rules.keys) == 1


def test_no_time_left_is_unknown_and_nothing_is_sent(
    stripe_rules: StripeRules, connect_stripe: Connect, reference: str
) -> None:
    with governing(Deadline.after(0)):
        assert isinstance(charge(connect_stripe(stripe_rules.url), reference), Unknown)
    assert stripe_rules.requests == 0


def test_a_call_may_take_one_look_up_longer_than_its_attempts() -> None:
    gateway = StripeGateway(api_key=API_KEY, timeout=4.0, attempts=2)
    assert gateway.longest_call == pytest.approx(2 * 4.0 + 2.1 + 4.0)


def test_the_sdk_tells_nobody_about_this_machine() -> None:
    assert not stripe.enable_telemetry


def test_the_settings_choose_it(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = {
        "BACKEND": BACKEND,
        "API_KEY": "sk_test_1",
        "CAPTURE": "manual",
        "TIMEOUT": 3.0,
    }
    gateway = get_gateway()
    assert isinstance(gateway, StripeGateway)
    assert (gateway.url, gateway.timeout) == ("https://api.stripe.com", 3.0)
    assert gateway is get_gateway()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "API_KEY"),
        ({"API_KEY": ""}, "API_KEY"),
        ({"API_KEY": "sk_1", "CAPTURE": "later"}, "CAPTURE"),
        ({"API_KEY": "sk_1", "HEDGING": None}, "HEDGING"),
        ({"API_KEY": "sk_1", "DEDUPES_FOR": 1}, "DEDUPES_FOR"),
        ({"API_KEY": "sk_1", "URL": "ftp://stripe"}, "URL"),
    ],
)
def test_settings_that_are_wrong_are_told(settings: Any, given: dict[str, Any], told: str) -> None:
    settings.PAYMENTS_GATEWAY = {"BACKEND": BACKEND, **given}
    with pytest.raises(ImproperlyConfigured, match=told):
        get_gateway()
