"""The steps of charges and refunds, each as a worker would run it that never saw the request."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from idempotency.operations import Done, Operation, Refused
from payments import charges, ledger
from payments.authentication import Caller
from payments.exceptions import NotPending
from payments.models import Charge, LedgerAccount, LedgerTransaction, Refund
from payments.operations import CreateCharge, CreateRefund
from tests.integration.payments.api import Api, problem
from tests.plugins.gateway import GatewayProcess

TAKEN = Done({"id": "gch_1"})
REFUSED = Refused({"status": 402, "code": "expired_card", "message": "The card has expired."})


@dataclass
class Request:
    """What `prepare` asks of a request."""

    user: Caller
    scheme: str = "https"

    def get_host(self) -> str:
        return "api.example.com"


@pytest.fixture(autouse=True)
def _wide_room(settings: Any) -> None:
    """What is prepared here keeps its place for a call that never comes."""
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "CALLS": 1000}


def prepared(api: Api, operation: Operation) -> dict[str, Any]:
    """The context after `prepare`, as it comes back from its JSON."""
    caller = Caller(api.merchant, api.merchant.api_keys.get())
    with transaction.atomic():
        context = operation.prepare(Request(caller))
    assert isinstance(context, dict)
    stored: dict[str, Any] = json.loads(json.dumps(context))
    return stored


@pytest.fixture
def charge(acme: Api) -> dict[str, Any]:
    """The context of a charge that is prepared."""
    return prepared(acme, CreateCharge(amount=1000, currency="EUR", source="tok_visa"))


@pytest.fixture
def refund(acme: Api, charge: dict[str, Any]) -> dict[str, Any]:
    """The context of a refund that is prepared."""
    CreateCharge().finalize(charge, TAKEN)
    return prepared(acme, CreateRefund(charge=charge["charge"], amount=400))


def held() -> int:
    return ledger.total(kind=LedgerAccount.Kind.REFUNDS_PENDING, currency="EUR")


def test_a_prepared_charge_has_moved_nothing(acme: Api, charge: dict[str, Any]) -> None:
    assert Charge.objects.get().status == Charge.Status.PENDING
    assert acme.balance() == 0


def test_a_charge_is_finalized_from_its_context_alone(acme: Api, charge: dict[str, Any]) -> None:
    reply = CreateCharge().finalize(charge, TAKEN)
    assert reply.status == 201
    assert reply.data["id"] == charge["charge"]
    assert reply.data["gateway_reference"] == "gch_1"
    assert acme.balance() == 1000


def test_a_refused_charge_names_a_page_on_the_host_that_was_asked(charge: dict[str, Any]) -> None:
    reply = CreateCharge().finalize(charge, REFUSED)
    assert (reply.status, reply.content_type) == (402, "application/problem+json")
    assert reply.data["type"] == "https://api.example.com/problems/card_declined/"
    assert reply.data["decline_code"] == "expired_card"


@pytest.mark.parametrize("second", [TAKEN, REFUSED])
@pytest.mark.parametrize("first", [TAKEN, REFUSED])
def test_a_charge_is_settled_once(
    acme: Api, charge: dict[str, Any], first: Done | Refused, second: Done | Refused
) -> None:
    CreateCharge().finalize(charge, first)
    balance = acme.balance()
    with pytest.raises(NotPending):
        CreateCharge().finalize(charge, second)
    assert acme.balance() == balance


def test_a_withdrawn_charge_cannot_be_settled(acme: Api, charge: dict[str, Any]) -> None:
    CreateCharge().withdraw(charge)
    assert Charge.objects.get().status == Charge.Status.WITHDRAWN
    with pytest.raises(NotPending):
        CreateCharge().finalize(charge, TAKEN)
    assert acme.balance() == 0


def test_the_database_refuses_to_post_a_charge_twice(acme: Api, charge: dict[str, Any]) -> None:
    CreateCharge().finalize(charge, TAKEN)
    Charge.objects.update(status=Charge.Status.PENDING)
    with (
        pytest.raises(IntegrityError, match="payments_ledgertransaction_charge_once"),
        transaction.atomic(),
    ):
        charges.succeed(public_id=charge["charge"], gateway_reference="gch_2")
    assert acme.balance() == 1000


def test_a_prepared_refund_has_set_the_amount_aside(acme: Api, refund: dict[str, Any]) -> None:
    assert (acme.balance(), held()) == (600, 400)
    assert Charge.objects.get().amount_refunded == 400


def test_a_settled_refund_leaves_nothing_aside(acme: Api, refund: dict[str, Any]) -> None:
    reply = CreateRefund().finalize(refund, Done({"id": "gre_1"}))
    assert (reply.status, reply.data["status"]) == (201, "succeeded")
    assert (acme.balance(), held()) == (600, 0)
    assert ledger.total(kind=LedgerAccount.Kind.GATEWAY_CLEARING, currency="EUR") == -600


def test_a_refused_refund_gives_the_amount_back(acme: Api, refund: dict[str, Any]) -> None:
    reply = CreateRefund().finalize(refund, REFUSED)
    assert (reply.status, reply.data["code"]) == (422, "refund_refused")
    assert (acme.balance(), held()) == (1000, 0)
    assert Charge.objects.get().amount_refunded == 0


def test_a_withdrawn_refund_gives_the_amount_back(acme: Api, refund: dict[str, Any]) -> None:
    CreateRefund().withdraw(refund)
    assert Refund.objects.get().status == Refund.Status.WITHDRAWN
    assert (acme.balance(), held()) == (1000, 0)


@pytest.mark.parametrize("first", [Done({"id": "gre_1"}), REFUSED])
def test_a_refund_ends_once(acme: Api, refund: dict[str, Any], first: Done | Refused) -> None:
    CreateRefund().finalize(refund, first)
    balance = acme.balance()
    for step in (
        lambda: CreateRefund().finalize(refund, REFUSED),
        lambda: CreateRefund().finalize(refund, Done({"id": "gre_2"})),
        lambda: CreateRefund().withdraw(refund),
    ):
        with pytest.raises(NotPending):
            step()
    assert (acme.balance(), held()) == (balance, 0)


def test_each_change_of_a_charge_is_a_new_version(acme: Api, refund: dict[str, Any]) -> None:
    # Created, settled, refund set aside; given back.
    assert Charge.objects.get().version == 3
    CreateRefund().withdraw(refund)
    assert Charge.objects.get().version == 4


def test_the_context_holds_no_secret_of_the_caller(acme: Api, charge: dict[str, Any]) -> None:
    assert acme.secret not in json.dumps(charge)


def test_a_gateway_that_does_not_dedupe_is_not_asked_twice(
    acme: Api, start_gateway: Callable[..., GatewayProcess], settings: Any
) -> None:
    gateway = start_gateway()
    gateway.control(dedupe=False)
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "DEDUPES": False}
    key = uuid.uuid4().hex
    for _ in range(2):
        problem(acme.charge("tok_answer_lost", key=key), 409, "outcome_in_doubt")
    assert len(gateway.ledger()) == 1


def test_nothing_is_posted_for_a_refund_the_gateway_never_heard_of(
    acme: Api, bank: GatewayProcess, settings: Any
) -> None:
    charge_id = acme.charge().json()["id"]
    # Nothing listens on port 1, so the call is certainly not sent.
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "TIMEOUT": 1.0, "ATTEMPTS": 1}
    key = uuid.uuid4().hex
    problem(acme.refund(charge_id, key=key), 503, "downstream_unavailable")
    assert (acme.balance(), held()) == (1000, 0)
    settings.PAYMENTS_GATEWAY = {"URL": bank.url}
    again = acme.refund(charge_id, key=key)
    assert again.status_code == 201
    assert [it.status for it in Refund.objects.order_by("id")] == ["withdrawn", "succeeded"]
    kinds = LedgerTransaction.objects.filter(refund__public_id=again.json()["id"]).order_by("id")
    assert [it.kind for it in kinds] == ["refund_hold", "refund_settlement"]
