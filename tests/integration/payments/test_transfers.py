"""Transfers between merchants."""

from __future__ import annotations

import uuid

import pytest

from payments import ledger
from payments.models import LedgerAccount, Transfer
from tests.integration.payments.api import Api, meeting_at, problem


def test_a_transfer_moves_money_from_one_balance_to_the_other(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    response = acme.transfer(globex, 400, description="Rent")
    assert response.status_code == 201
    assert (acme.balance(), globex.balance()) == (600, 400)
    body = response.json()
    assert body["from"] == acme.merchant.public_id
    assert body["to"] == globex.merchant.public_id
    assert (body["amount"], body["currency"], body["description"]) == (400, "EUR", "Rent")


def test_both_sides_see_the_transfer_and_nobody_else(acme: Api, globex: Api, initech: Api) -> None:
    acme.fund(1000)
    created = acme.transfer(globex, 400)
    for side in (acme, globex):
        assert side.get(created["Location"]).content == created.content
    problem(initech.get(created["Location"]), 404, "not_found")


def test_a_retry_transfers_once(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    key = uuid.uuid4().hex
    first = acme.transfer(globex, 400, key=key)
    again = acme.transfer(globex, 400, key=key)
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    assert acme.balance() == 600


def test_too_small_a_balance_is_an_answer_that_is_kept(acme: Api, globex: Api) -> None:
    acme.fund(100)
    key = uuid.uuid4().hex
    first = acme.transfer(globex, 101, key=key)
    problem(first, 422, "insufficient_funds")
    acme.fund(1000)
    again = acme.transfer(globex, 101, key=key)
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    assert not Transfer.objects.exists()
    assert (acme.balance(), globex.balance()) == (1100, 0)


def test_a_balance_in_another_currency_does_not_count(acme: Api, globex: Api) -> None:
    acme.fund(1000, "USD")
    problem(acme.transfer(globex, 1), 422, "insufficient_funds")


def test_an_unknown_account_is_not_found_and_the_key_is_free_again(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    key = uuid.uuid4().hex
    unknown = "acct_" + "0" * 24
    problem(acme.transfer(globex, 1, to=unknown, key=key), 404, "account_not_found")
    assert acme.transfer(globex, 1, key=key).status_code == 201


def test_a_transfer_to_oneself_is_refused(acme: Api) -> None:
    acme.fund(1000)
    problem(acme.transfer(acme, 1), 422, "same_account")
    assert acme.balance() == 1000


@pytest.mark.django_db(transaction=True)
def test_two_transfers_that_race_never_make_the_balance_negative(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    globex.fund(1)  # an account that had to be created would make them wait for each other there
    answers = meeting_at(
        LedgerAccount.objects.filter(merchant=acme.merchant),
        *[lambda: acme.transfer(globex, 700)] * 4,
    )
    assert sorted(answer.status_code for answer in answers) == [201, 422, 422, 422]
    assert (acme.balance(), globex.balance()) == (300, 701)
    assert not ledger.discrepancies()


@pytest.mark.django_db(transaction=True)
def test_transfers_in_both_directions_do_not_deadlock(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    globex.fund(1000)
    answers = meeting_at(
        LedgerAccount.objects.all().exclude(merchant=None),
        *[lambda: acme.transfer(globex, 10), lambda: globex.transfer(acme, 10)] * 4,
    )
    assert {answer.status_code for answer in answers} == {201}
    assert (acme.balance(), globex.balance()) == (1000, 1000)


def test_the_balance_is_shown_per_currency(acme: Api) -> None:
    acme.fund(5, "JPY")
    acme.fund(1000, "EUR")
    assert acme.get("/v1/balance").json() == {
        "data": [{"currency": "EUR", "amount": 1000}, {"currency": "JPY", "amount": 5}]
    }


def test_a_merchant_without_money_has_no_lines(acme: Api, globex: Api) -> None:
    globex.fund(5)
    assert acme.get("/v1/balance").json() == {"data": []}
