"""Transfers between merchants: one transaction, nothing outside the database."""

from django.db.models import Q

from payments import ids, ledger
from payments.exceptions import AccountNotFound, SameAccount, TransferNotFound
from payments.models import LedgerTransaction, Merchant, Transfer
from payments.webhooks import events

_ID = ids.pattern("tr")


def create(
    *,
    sender: Merchant,
    to: str,
    amount: int,
    currency: str,
    description: str = "",
    key_id: int | None = None,
) -> Transfer:
    """Move `amount` from the sender to the merchant whose public id is `to`.

    Raises `SameAccount`, `AccountNotFound` or `InsufficientFunds`. Nothing was moved then, and the
    transaction is still good, so the refusal can be stored in it.
    """
    if to == sender.public_id:
        raise SameAccount("The recipient is the sender.")
    recipient = Merchant.objects.filter(public_id=to).first()
    if recipient is None:
        raise AccountNotFound("There is no account with this id.")
    amounts = {
        ledger.merchant_place(merchant_id=sender.pk, currency=currency): -amount,
        ledger.merchant_place(merchant_id=recipient.pk, currency=currency): amount,
    }
    accounts = ledger.lock_accounts(places=amounts)
    ledger.check_funds(amounts=amounts, accounts=accounts)
    transfer = Transfer.objects.create(
        sender=sender,
        recipient=recipient,
        amount=amount,
        currency=currency,
        description=description,
        idempotency_key_id=key_id,
    )
    ledger.post(
        kind=LedgerTransaction.Kind.TRANSFER, amounts=amounts, accounts=accounts, transfer=transfer
    )
    events.transfer(transfer)
    return transfer


def get(*, merchant: Merchant, public_id: str) -> Transfer:
    """Either side may see it. Raises `TransferNotFound`."""
    transfers = Transfer.objects.filter(Q(sender=merchant) | Q(recipient=merchant))
    transfers = transfers.select_related("sender", "recipient")
    transfer = transfers.filter(public_id=public_id).first() if _ID.match(public_id) else None
    if transfer is None:
        raise TransferNotFound("There is no such transfer.")
    return transfer
