"""Charges, from the request to the gateway's ledger and ours."""

from __future__ import annotations

import uuid

import pytest

from payments import currencies, ledger
from payments.models import Charge, LedgerAccount, LedgerTransaction
from tests.integration.payments.api import Api, at_once, problem
from tests.plugins.gateway import GatewayProcess


def movements(bank: GatewayProcess, reference: str) -> list[tuple[str, int, str]]:
    """What the gateway did for one of our charges or refunds."""
    return [
        (row["kind"], row["amount"], row["currency"])
        for row in bank.ledger()
        if row["reference"] == reference
    ]


def test_a_charge_moves_the_money_once_at_the_gateway_and_in_the_ledger(
    acme: Api, bank: GatewayProcess
) -> None:
    response = acme.charge(description="Tea", metadata={"order": "17"})
    assert response.status_code == 201
    charge = response.json()
    assert charge["status"] == "succeeded"
    assert charge["description"] == "Tea"
    assert charge["metadata"] == {"order": "17"}
    assert movements(bank, charge["id"]) == [("charge", 1000, "EUR")]
    assert acme.balance() == 1000
    posted = LedgerTransaction.objects.get(charge__public_id=charge["id"])
    assert sorted(entry.amount for entry in posted.entries.all()) == [-1000, 1000]


def test_location_and_etag_lead_to_the_same_bytes(acme: Api, bank: GatewayProcess) -> None:
    created = acme.charge(
        description="Grüße ☕", metadata={"b": 1.0, "a": [1e16, 0.1, -0.0, {"y": 1, "aa": None}]}
    )
    shown = acme.get(created["Location"])
    assert shown.status_code == 200
    assert shown["ETag"] == created["ETag"]
    assert shown.content == created.content


def test_a_retry_gets_the_first_answer(acme: Api, bank: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    first = acme.charge(key=key)
    again = acme.charge(key=key)
    assert again.status_code == 201
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    assert again["Location"] == first["Location"]
    assert again["ETag"] == first["ETag"]
    assert acme.balance() == 1000


def test_a_decline_is_an_answer_and_is_kept(acme: Api, bank: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    first = acme.charge("tok_declined", key=key)
    declined = problem(first, 402, "card_declined")
    charge = Charge.objects.get(public_id=declined["charge"])
    assert charge.status == Charge.Status.DECLINED
    assert declined["decline_code"] == charge.decline_code != ""
    assert movements(bank, charge.public_id) == []
    assert acme.balance() == 0
    again = acme.charge("tok_declined", key=key)
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    assert Charge.objects.count() == 1


@pytest.mark.parametrize("source", ["tok_answer_lost", "tok_error_before", "tok_error_after"])
def test_a_gateway_that_stumbles_still_charges_once(
    acme: Api, bank: GatewayProcess, source: str
) -> None:
    response = acme.charge(source)
    assert response.status_code == 201
    assert movements(bank, response.json()["id"]) == [("charge", 1000, "EUR")]
    assert acme.balance() == 1000


def test_a_gateway_that_was_never_reached_leaves_a_withdrawn_charge(
    acme: Api, bank: GatewayProcess
) -> None:
    response = acme.charge("tok_down")
    problem(response, 503, "downstream_unavailable")
    assert response["Retry-After"]
    assert [charge.status for charge in Charge.objects.all()] == ["withdrawn"]
    assert acme.balance() == 0


@pytest.mark.parametrize("currency", ["EUR", "JPY", "KWD", "CLF"])
def test_currencies_with_any_number_of_decimals_are_charged_in_minor_units(
    acme: Api, bank: GatewayProcess, currency: str
) -> None:
    response = acme.charge(amount=1234, currency=currency)
    assert response.status_code == 201
    assert movements(bank, response.json()["id"]) == [("charge", 1234, currency)]
    assert acme.balance(currency) == 1234


def test_amounts_are_shown_with_the_decimals_of_their_currency() -> None:
    shown = [
        currencies.format_amount(amount=amount, currency=currency)
        for amount, currency in [
            (1250, "EUR"),
            (5, "EUR"),
            (1250, "JPY"),
            (1250, "KWD"),
            (-7, "CLF"),
        ]
    ]
    assert shown == ["12.50 EUR", "0.05 EUR", "1250 JPY", "1.250 KWD", "-0.0007 CLF"]


def test_the_currency_table_holds_the_active_codes_and_no_metals() -> None:
    assert len(currencies.CODES) == len(set(currencies.CODES)) == 165
    assert {"EUR", "XCG", "ZWG"} <= set(currencies.CODES)
    assert not {"XAU", "XXX", "BGN", "HRK"} & set(currencies.CODES)


@pytest.mark.django_db(transaction=True)
def test_a_double_click_charges_once(acme: Api, bank: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    answers = at_once(*[lambda: acme.charge("tok_visa", key=key)] * 8)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    charge = Charge.objects.get()
    assert movements(bank, charge.public_id) == [("charge", 1000, "EUR")]
    assert acme.balance() == 1000


def test_the_ledger_and_the_gateway_agree(acme: Api, bank: GatewayProcess) -> None:
    before = ledger.total(kind=LedgerAccount.Kind.GATEWAY_CLEARING, currency="SEK")
    ids = [
        acme.charge(source, currency="SEK").json().get("id")
        for source in ("tok_visa", "tok_declined", "tok_answer_lost")
    ]
    moved = sum(row["amount"] for row in bank.ledger() if row["reference"] in ids)
    assert (
        before - ledger.total(kind=LedgerAccount.Kind.GATEWAY_CLEARING, currency="SEK")
        == moved
        == 2000
    )
