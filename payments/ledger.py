"""The ledger: double entry, in one currency a movement.

A positive amount is a credit and a negative one a debit, so a merchant's balance is what the
product owes that merchant, and the entries of a transaction sum to zero. PostgreSQL holds the rules
(`payments/sql/`): a transaction that does not balance cannot be committed, an entry cannot be
changed, a merchant's balance cannot become negative.

Lock order, for all of `payments`; each step is taken only after the ones above it:

1. the charge, then its refund;
2. accounts that do not exist yet, created in the order of `Place`;
3. merchant accounts, by id, all at once, in `lock_accounts`.

Nobody waits for step 1 or 2 while holding an account, so two movements cannot wait for each other.
Accounts without an owner are never locked: nothing about them is checked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db import models
from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce

from payments.exceptions import InsufficientFunds
from payments.models import (
    Charge,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    Merchant,
    Refund,
    Transfer,
)


@dataclass(frozen=True, order=True)
class Place:
    """Names an account: what kind, in which currency, and whose (0: the product's own)."""

    kind: str
    currency: str
    merchant_id: int = 0


def merchant_place(*, merchant_id: int, currency: str) -> Place:
    return Place(LedgerAccount.Kind.MERCHANT.value, currency, merchant_id)


def lock_accounts(*, places: Iterable[Place]) -> dict[Place, LedgerAccount]:
    """The accounts at `places`, created where absent; those of merchants locked until commit.

    Their balances are those of the moment the lock was got. Call it once a transaction.
    """
    wanted = sorted(set(places))
    found = _find(wanted)
    if missing := [place for place in wanted if place not in found]:
        _create(missing)
        found |= _find(missing)
    own = [found[place].pk for place in wanted if place.merchant_id]
    # NO KEY: the foreign key check of somebody's new entry need not wait for this transaction.
    locked = LedgerAccount.objects.select_for_update(no_key=True).filter(pk__in=own)
    return found | {_place_of(account): account for account in locked.order_by("pk")}


def post(
    *,
    kind: LedgerTransaction.Kind,
    amounts: Mapping[Place, int],
    accounts: Mapping[Place, LedgerAccount] | None = None,
    charge: Charge | None = None,
    refund: Refund | None = None,
    transfer: Transfer | None = None,
) -> LedgerTransaction:
    """Write one transaction; `amounts` must sum to zero in each currency.

    `accounts` are those `lock_accounts` gave, when the caller had to look at them before.
    Raises `InsufficientFunds`, having written nothing, when a merchant's balance would not do.
    """
    accounts = accounts or lock_accounts(places=amounts)
    check_funds(amounts=amounts, accounts=accounts)
    transaction = LedgerTransaction.objects.create(
        kind=kind, charge=charge, refund=refund, transfer=transfer
    )
    entries = [
        LedgerEntry(transaction=transaction, account=accounts[place], amount=amount)
        for place, amount in amounts.items()
    ]
    # The trigger updates balances in this order; it is the order the locks were taken in.
    LedgerEntry.objects.bulk_create(sorted(entries, key=lambda entry: entry.account_id))
    return transaction


def check_funds(*, amounts: Mapping[Place, int], accounts: Mapping[Place, LedgerAccount]) -> None:
    """Raise `InsufficientFunds` if one of the locked `accounts` cannot give its amount."""
    for place, amount in amounts.items():
        balance = accounts[place].balance
        if balance is not None and balance + amount < 0:
            raise InsufficientFunds(currency=place.currency)


def balances(*, merchant: Merchant) -> list[tuple[str, int]]:
    """Currency and balance of each account of the merchant, by currency."""
    accounts = LedgerAccount.objects.filter(merchant=merchant).order_by("currency")
    return [
        (currency, balance or 0)
        for currency, balance in accounts.values_list("currency", "balance")
    ]


def total(*, kind: LedgerAccount.Kind, currency: str) -> int:
    """The sum of the entries of an account without an owner; it reads them all."""
    entries = LedgerEntry.objects.filter(account__kind=kind, account__currency=currency)
    posted: int = entries.aggregate(total=Coalesce(Sum("amount"), 0))["total"]
    return posted


def discrepancies() -> "models.QuerySet[LedgerAccount]":
    """Merchant accounts whose kept balance is not the sum of their entries: always none."""
    return (
        LedgerAccount.objects.filter(merchant__isnull=False)
        .annotate(posted=Coalesce(Sum("entries__amount"), 0))
        .exclude(posted=F("balance"))
    )


def _find(places: list[Place]) -> dict[Place, LedgerAccount]:
    condition = Q(pk__in=[])
    for place in places:
        condition |= Q(
            kind=place.kind, currency=place.currency, merchant_id=place.merchant_id or None
        )
    return {_place_of(account): account for account in LedgerAccount.objects.filter(condition)}


def _create(places: list[Place]) -> None:
    accounts = (
        LedgerAccount(
            kind=place.kind,
            currency=place.currency,
            merchant_id=place.merchant_id or None,
            balance=0 if place.merchant_id else None,
        )
        for place in places
    )
    # Somebody else may be creating the same one: wait for that, and take theirs.
    LedgerAccount.objects.bulk_create(accounts, ignore_conflicts=True)


def _place_of(account: LedgerAccount) -> Place:
    return Place(account.kind, account.currency, account.merchant_id or 0)
