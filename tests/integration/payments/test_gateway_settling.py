"""What an event does to a charge or refund whose outcome nobody knew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from idempotency.models import EventKind, IdempotencyKey, KeyEvent, OutboxMessage
from idempotency.operations import Done, Outcome
from idempotency.operators import Seen, force_fail
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.testing import assert_replayed, expire_lease, hold_key
from payments import charges, settlement
from payments.gateways.choice import get_gateway
from payments.models import Charge, Refund
from tests.integration.payments.api import Api, at_once, problem
from tests.integration.payments.gateway_messages import SECRET, Event, ended
from tests.plugins.fault_proxy import Fault, FaultProxy
from tests.plugins.gateway import GatewayProcess

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def way(
    bank: GatewayProcess, start_proxy: Callable[[str], FaultProxy], settings: Any
) -> FaultProxy:
    """The way to the gateway, on which answers may be lost; each call is made once."""
    proxy = start_proxy(bank.url)
    settings.PAYMENTS_WEBHOOKS = {"GATEWAY_SECRETS": [SECRET]}
    settings.PAYMENTS_GATEWAY = {"URL": proxy.url, "TIMEOUT": 5.0, "ATTEMPTS": 1}
    return proxy


@pytest.fixture
def charge(acme: Api, way: FaultProxy) -> Charge:
    """Asked for under the key k1: the gateway took the money, and we do not know."""
    return lost(acme, way, "tok_visa")


def lost(acme: Api, way: FaultProxy, source: str) -> Charge:
    way.plan(Fault.LOSE)
    problem(acme.charge(source, key="k1"), 503, "outcome_pending")
    return Charge.objects.get()


@pytest.fixture
def refund(acme: Api, way: FaultProxy) -> Refund:
    """Asked for under the key k2, of a charge that succeeded; the answer was lost."""
    charge = acme.charge(key="k1").json()["id"]
    way.plan(Fault.LOSE)
    problem(acme.refund(charge, key="k2"), 503, "outcome_pending")
    return Refund.objects.get()


def entry(bank: GatewayProcess, movement: Charge | Refund) -> dict[str, Any]:
    """What the gateway's own books have of it."""
    kind = "refunds" if isinstance(movement, Refund) else "charges"
    found: list[dict[str, Any]] = bank.find(kind, movement.public_id)
    return found[0]


def tell(*events: Event) -> list[str]:
    """Have the gateway send these; the state of each one's message once it was looked at."""
    for event in events:
        assert event.send().status_code == 204
    return look()


def look() -> list[str]:
    """Have every message looked at that is not done with, due or not."""
    OutboxMessage.objects.update(due_at=timezone.now() - timedelta(hours=1))
    Dispatcher(threads=0).run()
    messages = OutboxMessage.objects.filter(channel="gateway-events").order_by("sequence")
    return list(messages.values_list("state", flat=True))


def refreshed(movement: Any) -> Any:
    movement.refresh_from_db()
    return movement


def test_a_charge_whose_answer_was_lost_is_settled_and_its_key_has_the_answer(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    assert tell(ended("charge", entry(bank, charge))) == ["delivered"]
    assert refreshed(charge).gateway_reference == entry(bank, charge)["id"]
    assert (charge.status, acme.balance()) == ("succeeded", 1000)
    answer = acme.charge(key="k1")
    assert (answer.status_code, answer.json()["id"]) == (201, charge.public_id)
    assert_replayed(answer)
    assert KeyEvent.objects.filter(kind=EventKind.RESOLVED, actor="gateway event").count() == 1


def test_a_decline_whose_answer_was_lost_is_settled(
    acme: Api, way: FaultProxy, bank: GatewayProcess
) -> None:
    charge = lost(acme, way, "tok_declined")
    data = entry(bank, charge) | {"code": "card_declined"}
    assert tell(ended("charge", data)) == ["delivered"]
    assert refreshed(charge).decline_code == "card_declined"
    problem(acme.charge("tok_declined", key="k1"), 402, "card_declined")


def test_a_refund_whose_answer_was_lost_is_settled(
    acme: Api, refund: Refund, bank: GatewayProcess
) -> None:
    assert tell(ended("refund", entry(bank, refund))) == ["delivered"]
    assert refreshed(refund).status == "succeeded"
    assert acme.refund(refund.charge.public_id, key="k2").status_code == 201
    assert acme.balance() == 0


def test_a_refunds_event_may_come_before_its_charges(
    acme: Api, refund: Refund, bank: GatewayProcess
) -> None:
    first = ended("charge", entry(bank, refund.charge))
    second = ended("refund", entry(bank, refund))
    assert tell(second, first) == ["delivered", "delivered"]
    assert (refreshed(refund).status, acme.balance()) == ("succeeded", 0)


@pytest.mark.django_db(transaction=True)
def test_the_same_event_twenty_times_at_once_settles_once(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    event = ended("charge", entry(bank, charge))
    at_once(*[event.send] * 20)
    assert tell(event) == ["delivered"]
    assert tell(event) == ["delivered"]
    assert acme.balance() == 1000


@pytest.mark.django_db(transaction=True)
def test_two_events_about_one_charge_at_once_settle_it_once(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    """As with two dispatchers, and an event beside the reconciliation."""
    for _ in range(2):
        ended("charge", entry(bank, charge)).send()
    at_once(*[lambda: Dispatcher(threads=0).run()] * 2)
    assert look() == ["delivered", "delivered"]
    assert acme.balance() == 1000


# --- Whoever is at it -----------------------------------------------------------------------------


def test_a_request_that_is_still_at_it_is_left_alone(
    acme: Api, charge: Charge, bank: GatewayProcess, way: FaultProxy
) -> None:
    event = ended("charge", entry(bank, charge))
    asked = way.requests
    with hold_key("k1"):
        assert tell(event) == ["pending"]
        assert (refreshed(charge).status, way.requests) == ("pending", asked)
    assert look() == ["delivered"]
    assert refreshed(charge).status == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_wakes_after_the_event_is_fenced_off(
    acme: Api, bank: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the gateway's answer in its hands, and its lease is over."""
    answered, may_go_on = threading.Event(), threading.Event()
    gateway = get_gateway()
    real = gateway.charge

    def answer_and_sleep(**call: Any) -> Outcome:
        outcome = real(**call)
        answered.set()
        assert may_go_on.wait(30)
        return outcome

    monkeypatch.setattr(gateway, "charge", answer_and_sleep)
    with ThreadPoolExecutor(1) as worker:
        sleeping = worker.submit(in_thread, lambda: acme.charge(key="k1"))
        assert answered.wait(30)
        expire_lease("k1")
        charge = Charge.objects.get()
        assert tell(ended("charge", entry(bank, charge))) == ["delivered"]
        may_go_on.set()
        problem(sleeping.result(30), 409, "idempotency_lease_lost")
    assert (refreshed(charge).status, acme.balance()) == ("succeeded", 1000)
    assert_replayed(acme.charge(key="k1"))


def in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    finally:
        connections.close_all()


# --- An event that says otherwise -----------------------------------------------------------------


def test_an_event_about_another_amount_is_not_taken_at_its_word(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    assert tell(ended("charge", entry(bank, charge), amount=9)) == ["delivered"]
    assert (refreshed(charge).amount, acme.balance()) == (1000, 1000)


def test_the_gateways_books_outweigh_an_event(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    """Whoever knows the secret and not the money cannot decline what was charged."""
    lie = Event("charge.declined", entry(bank, charge) | {"code": "card_declined"})
    assert tell(lie) == ["delivered"]
    assert refreshed(charge).status == "succeeded"


def test_a_charge_that_is_not_in_the_gateways_books_is_not_settled(
    acme: Api, way: FaultProxy
) -> None:
    way.plan(Fault.RESET)
    acme.charge(key="k1")
    pending = charges.create_pending(merchant=acme.merchant, amount=1000, currency="EUR")
    data = {"id": "gch_lie", "amount": 1000, "currency": "EUR", "reference": pending.public_id}
    assert tell(Event("charge.succeeded", data)) == ["pending"]
    assert "books do not tell" in OutboxMessage.objects.get().last_error
    assert (refreshed(pending).status, acme.balance()) == ("pending", 0)


def test_a_gateway_that_cannot_be_asked_is_taken_at_its_word_about_the_same_money(
    acme: Api, charge: Charge, bank: GatewayProcess, way: FaultProxy
) -> None:
    told = ended("charge", entry(bank, charge))
    way.choose = lambda head: Fault.RESET
    assert tell(told) == ["delivered"]
    assert (refreshed(charge).status, acme.balance()) == ("succeeded", 1000)


@pytest.mark.parametrize("changes", [{"amount": 9}, {"currency": "USD"}])
def test_and_not_about_other_money(
    acme: Api, charge: Charge, bank: GatewayProcess, way: FaultProxy, changes: dict[str, Any]
) -> None:
    told = ended("charge", entry(bank, charge), **changes)
    way.choose = lambda head: Fault.RESET
    assert tell(told) == ["pending"]
    assert refreshed(charge).status == "pending"
    way.choose = lambda head: Fault.PASS
    assert look() == ["delivered"]


def test_an_event_about_a_charge_that_is_not_here_waits(acme: Api) -> None:
    data = {"id": "gch_1", "amount": 1, "currency": "EUR", "reference": "ch_elsewhere"}
    assert tell(Event("charge.succeeded", data)) == ["pending"]
    assert OutboxMessage.objects.get().last_error == "There is no charge ch_elsewhere."


def test_an_event_that_contradicts_what_is_settled_waits_for_an_operator(
    acme: Api, bank: GatewayProcess
) -> None:
    settled = acme.charge().json()
    charge = Charge.objects.get()
    again = ended("charge", entry(bank, charge), id="gch_second")
    other = ended("charge", entry(bank, charge), amount=5)
    lie = Event("charge.declined", entry(bank, charge) | {"code": "no"})
    assert tell(again, other, lie) == ["dead", "dead", "dead"]
    assert acme.get(f"/v1/charges/{charge.public_id}").json() == settled
    assert acme.balance() == 1000


def test_money_that_moved_for_what_is_declined_here_waits_for_an_operator(
    acme: Api, bank: GatewayProcess
) -> None:
    acme.charge("tok_declined")
    charge = Charge.objects.get()
    data = {"id": "gch_2", "amount": 1000, "currency": "EUR", "reference": charge.public_id}
    assert tell(Event("charge.succeeded", data)) == ["dead"]
    assert "Here it is declined" in OutboxMessage.objects.get().last_error


def test_a_charge_whose_key_an_operator_ended_is_settled_all_the_same(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    """The money is real, whatever the key says."""
    key = IdempotencyKey.objects.get()
    assert force_fail(key.pk, seen=Seen.of(key), actor="ann", reason="stuck", final=True)
    assert tell(ended("charge", entry(bank, charge))) == ["delivered"]
    assert (refreshed(charge).status, acme.balance()) == ("succeeded", 1000)
    assert acme.charge(key="k1").status_code == 410


def test_a_charge_whose_key_an_operator_freed_is_settled_and_the_retry_gets_the_answer(
    acme: Api, charge: Charge, bank: GatewayProcess
) -> None:
    key = IdempotencyKey.objects.get()
    assert force_fail(key.pk, seen=Seen.of(key), actor="ann", reason="stuck", final=False)
    assert tell(ended("charge", entry(bank, charge))) == ["delivered"]
    assert acme.balance() == 1000
    assert_replayed(acme.charge(key="k1"))


def test_a_charge_that_was_settled_in_between_is_compared(
    acme: Api, charge: Charge, bank: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the reconciliation, while the gateway was asked for the event."""
    gateway = get_gateway()

    def settle_meanwhile(**question: Any) -> Outcome:
        found = Done({"id": "gch_1"})
        assert settlement.settle(charge, found, actor="somebody", reason="was faster")
        return found

    monkeypatch.setattr(gateway, "find_charge", settle_meanwhile)
    assert tell(ended("charge", entry(bank, charge), id="gch_1")) == ["pending"]
    assert look() == ["delivered"]
    assert acme.balance() == 1000
