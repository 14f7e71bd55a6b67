"""The ledger's rules hold in the database, whatever the code above it does."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from payments import ledger
from payments.exceptions import InsufficientFunds
from payments.models import LedgerAccount, LedgerEntry, LedgerTransaction
from tests.integration.payments.api import Api, at_once

FUNDING = ledger.Place(LedgerAccount.Kind.FUNDING.value, "EUR")


def enter(posted: LedgerTransaction, place: ledger.Place, amount: int) -> LedgerEntry:
    account = ledger.lock_accounts(places=[place])[place]
    return LedgerEntry.objects.create(transaction=posted, account=account, amount=amount)


def enter_all(*lines: tuple[ledger.Place, int]) -> None:
    """A transaction of the database with these entries, whether or not they balance."""
    with transaction.atomic():
        posted = LedgerTransaction.objects.create(kind=LedgerTransaction.Kind.FUNDING)
        for place, amount in lines:
            enter(posted, place, amount)


def own(api: Api, currency: str = "EUR") -> ledger.Place:
    return ledger.merchant_place(merchant_id=api.merchant.pk, currency=currency)


@pytest.mark.django_db(transaction=True)
def test_an_unbalanced_transaction_cannot_be_committed(acme: Api) -> None:
    with pytest.raises(IntegrityError, match="does not sum to zero"):
        enter_all((own(acme), 100), (FUNDING, -99))
    assert not LedgerEntry.objects.exists()
    assert acme.balance() == 0


@pytest.mark.django_db(transaction=True)
def test_a_transaction_may_be_unbalanced_until_its_last_entry(acme: Api) -> None:
    enter_all((own(acme), 100), (FUNDING, -60), (ledger.Place("gateway_clearing", "EUR"), -40))
    assert acme.balance() == 100


@pytest.mark.django_db(transaction=True)
def test_currencies_do_not_balance_each_other(acme: Api) -> None:
    with pytest.raises(IntegrityError, match="does not sum to zero"):
        enter_all((own(acme, "USD"), 100), (FUNDING, -100))


@pytest.mark.django_db(transaction=True)
def test_an_entry_added_to_a_committed_transaction_is_refused(acme: Api) -> None:
    acme.fund(100)
    posted = LedgerTransaction.objects.get()
    with pytest.raises(IntegrityError, match="does not sum to zero"), transaction.atomic():
        enter(posted, ledger.Place(LedgerAccount.Kind.GATEWAY_CLEARING.value, "EUR"), 5)


def test_the_balance_follows_the_entries_and_the_product_keeps_none_of_its_own(acme: Api) -> None:
    acme.fund(100)
    acme.fund(50)
    assert acme.balance() == 150
    assert LedgerAccount.objects.get(kind=LedgerAccount.Kind.FUNDING).balance is None
    assert ledger.total(kind=LedgerAccount.Kind.FUNDING, currency="EUR") == -150
    assert not ledger.discrepancies()


def test_a_balance_that_lies_is_found(acme: Api) -> None:
    acme.fund(100)
    LedgerAccount.objects.filter(merchant=acme.merchant).update(balance=101)
    assert [account.merchant for account in ledger.discrepancies()] == [acme.merchant]


def test_the_database_refuses_a_negative_balance_without_the_help_of_the_code(acme: Api) -> None:
    with pytest.raises(IntegrityError, match="payments_ledgeraccount_balance_not_negative"):
        enter_all((own(acme), -1))


def test_too_small_a_balance_is_told_before_anything_is_written(acme: Api) -> None:
    acme.fund(100)
    with pytest.raises(InsufficientFunds):
        ledger.post(kind=LedgerTransaction.Kind.FUNDING, amounts={own(acme): -101, FUNDING: 101})
    assert LedgerTransaction.objects.count() == 1


@pytest.mark.parametrize("statement", ["UPDATE {} SET id = id", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["payments_ledgerentry", "payments_ledgertransaction"])
def test_what_is_posted_stays_posted(acme: Api, statement: str, table: str) -> None:
    acme.fund(100)
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement.format(table))


def test_an_account_keeps_its_currency(acme: Api) -> None:
    acme.fund(100)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        LedgerAccount.objects.filter(merchant=acme.merchant).update(currency="USD")


@pytest.mark.django_db(transaction=True)
def test_accounts_created_by_two_at_once_are_one_account(acme: Api) -> None:
    at_once(*[lambda: acme.fund(10)] * 4)
    assert LedgerAccount.objects.filter(merchant=acme.merchant).count() == 1
    assert acme.balance() == 40


@pytest.mark.django_db(transaction=True)
def test_the_rules_can_be_uninstalled_and_installed_again(acme: Api) -> None:
    """The migrations of the rules run backwards and forwards."""
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'payments_ledger%'"

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute(triggers)
            found: int = cursor.fetchone()[0]
        return found

    assert count() == 5
    try:
        MigrationExecutor(connection).migrate([("payments", "0001_initial")])
        assert count() == 0
    finally:
        # To the last one: later tests need what came after the rules as well.
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes("payments"))
    assert count() == 5
