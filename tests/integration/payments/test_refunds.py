"""Refunds: never more than was charged, and never from money that is not there."""

from __future__ import annotations

import uuid

import pytest

from payments import ledger
from payments.models import Charge, LedgerAccount, Refund
from tests.integration.payments.api import Api, meeting_at, problem
from tests.integration.payments.test_charges import movements
from tests.plugins.gateway import GatewayProcess


def pending_total() -> int:
    return ledger.total(kind=LedgerAccount.Kind.REFUNDS_PENDING, currency="EUR")


def charged(api: Api, amount: int = 1000) -> str:
    response = api.charge(amount=amount)
    assert response.status_code == 201
    charge_id: str = response.json()["id"]
    return charge_id


def test_a_refund_in_parts_and_then_the_rest(acme: Api, bank: GatewayProcess) -> None:
    charge = charged(acme)
    part = acme.refund(charge, amount=300)
    assert part.status_code == 201
    assert part.json()["status"] == "succeeded"
    assert part.json()["charge"] == charge
    rest = acme.refund(charge)
    assert rest.json()["amount"] == 700
    assert acme.balance() == 0
    assert pending_total() == 0
    assert Charge.objects.get(public_id=charge).amount_refunded == 1000
    assert movements(bank, rest.json()["id"]) == [("refund", 700, "EUR")]
    refused = problem(acme.refund(charge), 422, "refund_exceeds_charge")
    assert refused["refundable"] == 0


def test_location_leads_to_the_refund_and_the_list_holds_it(
    acme: Api, bank: GatewayProcess
) -> None:
    charge = charged(acme)
    created = acme.refund(charge, amount=1)
    assert acme.get(created["Location"]).content == created.content
    listed = acme.get(f"/v1/charges/{charge}/refunds").json()
    assert listed == {"data": [created.json()], "next_cursor": None}


def test_more_than_what_is_left_is_refused_and_the_answer_is_kept(
    acme: Api, bank: GatewayProcess
) -> None:
    charge = charged(acme)
    key = uuid.uuid4().hex
    first = acme.refund(charge, amount=1001, key=key)
    assert problem(first, 422, "refund_exceeds_charge")["refundable"] == 1000
    again = acme.refund(charge, amount=1001, key=key)
    assert again["Idempotent-Replayed"] == "true"
    assert again.content == first.content
    assert not Refund.objects.exists()


def test_a_charge_that_did_not_succeed_cannot_be_refunded(acme: Api, bank: GatewayProcess) -> None:
    charge = problem(acme.charge("tok_declined"), 402, "card_declined")["charge"]
    problem(acme.refund(charge), 422, "charge_not_refundable")


def test_an_empty_amount_in_a_form_is_not_the_whole_charge(acme: Api, bank: GatewayProcess) -> None:
    response = acme.request(
        "POST",
        f"/v1/charges/{charged(acme)}/refunds",
        "amount=",
        content_type="application/x-www-form-urlencoded",
        headers={"Idempotency-Key": uuid.uuid4().hex},
    )
    assert list(problem(response, 400, "invalid_request")["errors"]) == ["amount"]


@pytest.mark.parametrize(("body", "status"), [("--b--\r\n", 201), ("--b\r\nx--b--\r\n", 400)])
def test_only_a_body_without_anything_in_it_means_the_whole_charge(
    acme: Api, bank: GatewayProcess, body: str, status: int
) -> None:
    response = acme.request(
        "POST",
        f"/v1/charges/{charged(acme)}/refunds",
        body,
        content_type="multipart/form-data; boundary=b",
        headers={"Idempotency-Key": uuid.uuid4().hex},
    )
    assert response.status_code == status


def test_a_charge_of_somebody_else_is_not_found_and_the_key_is_free_again(
    acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    charge = charged(globex)
    key = uuid.uuid4().hex
    problem(acme.refund(charge, key=key), 404, "not_found")
    own = charged(acme)
    assert acme.refund(own, key=key).status_code == 201


def test_money_that_was_spent_cannot_be_refunded(
    acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    charge = charged(acme)
    assert acme.transfer(globex, 600).status_code == 201
    problem(acme.refund(charge), 422, "insufficient_funds")
    assert acme.balance() == 400
    assert Charge.objects.get(public_id=charge).amount_refunded == 0


def test_a_refusal_of_the_gateway_gives_the_amount_back(acme: Api, bank: GatewayProcess) -> None:
    charge = charged(acme)
    # The gateway does not know this charge, so it refuses for good.
    Charge.objects.filter(public_id=charge).update(gateway_reference="unknown")
    refused = problem(acme.refund(charge, amount=400), 422, "refund_refused")
    refund = Refund.objects.get(public_id=refused["refund"])
    assert refund.status == Refund.Status.FAILED
    assert refused["failure_code"] == refund.failure_code != ""
    assert acme.balance() == 1000
    assert pending_total() == 0
    assert Charge.objects.get(public_id=charge).amount_refunded == 0


@pytest.mark.django_db(transaction=True)
def test_two_refunds_that_race_never_exceed_the_charge(acme: Api, bank: GatewayProcess) -> None:
    charge = charged(acme)
    acme.fund(5000)  # so that it is not the balance that forbids the second one
    answers = meeting_at(
        Charge.objects.filter(public_id=charge), *[lambda: acme.refund(charge, amount=600)] * 2
    )
    assert sorted(answer.status_code for answer in answers) == [201, 422]
    assert Charge.objects.get(public_id=charge).amount_refunded == 600
    assert acme.balance() == 5400
    moved = [
        row["amount"]
        for row in bank.ledger()
        if row["kind"] == "refund"
        and row["reference"] in set(Refund.objects.values_list("public_id", flat=True))
    ]
    assert moved == [600]


@pytest.mark.django_db(transaction=True)
def test_a_refund_and_a_transfer_that_race_spend_the_money_once(
    acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    charge = charged(acme)
    refund, transfer = meeting_at(
        LedgerAccount.objects.filter(merchant=acme.merchant),
        lambda: acme.refund(charge, amount=700),
        lambda: acme.transfer(globex, 700),
    )
    assert sorted([refund.status_code, transfer.status_code]) == [201, 422]
    assert acme.balance() == 300
    assert not ledger.discrepancies()
