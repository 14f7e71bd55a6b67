"""Refunds: the amount is set aside first, so that the gateway is only asked for what is there.

::

    pending ──▶ succeeded     the gateway gave the money back
       ├──────▶ failed        the gateway refused; the amount goes back to the merchant
       └──────▶ withdrawn     the gateway was certainly not asked; likewise

Setting aside moves the amount from the merchant's account to "refunds pending". Without it the
merchant could spend the money while the gateway works, and settling would make the balance
negative.
"""

from typing import Any

from django.db.models import F, QuerySet

from payments import charges, ids, ledger
from payments.exceptions import (
    ChargeNotRefundable,
    NotPending,
    RefundExceedsCharge,
    RefundNotFound,
)
from payments.models import (
    Charge,
    LedgerAccount,
    LedgerTransaction,
    Merchant,
    Refund,
    storable,
)
from payments.webhooks import events

_ID = ids.pattern("re")
_PENDING = LedgerAccount.Kind.REFUNDS_PENDING.value
_CLEARING = LedgerAccount.Kind.GATEWAY_CLEARING.value


def create_pending(
    *, merchant: Merchant, charge_id: str, amount: int | None, key_id: int | None = None
) -> Refund:
    """Set `amount` aside, or all that is left when it is None. Writes nothing when it raises.

    Raises `ChargeNotFound`, `ChargeNotRefundable`, `RefundExceedsCharge` or `InsufficientFunds`.
    """
    charge = charges.lock(merchant=merchant, public_id=charge_id)
    amount = _checked_amount(charge, amount)
    owner = ledger.merchant_place(merchant_id=merchant.pk, currency=charge.currency)
    amounts = {owner: -amount, ledger.Place(_PENDING, charge.currency): amount}
    accounts = ledger.lock_accounts(places=amounts)
    ledger.check_funds(amounts=amounts, accounts=accounts)
    refund = Refund.objects.create(
        charge=charge, amount=amount, currency=charge.currency, idempotency_key_id=key_id
    )
    _count_refunded(charge.pk, amount)
    ledger.post(
        kind=LedgerTransaction.Kind.REFUND_HOLD, amounts=amounts, accounts=accounts, refund=refund
    )
    return refund


def succeed(*, public_id: str, gateway_reference: str) -> Refund:
    """The gateway gave the money back. Raises `NotPending`."""
    refund = _leave_pending(
        public_id, status=Refund.Status.SUCCEEDED, gateway_reference=gateway_reference
    )
    ledger.post(
        kind=LedgerTransaction.Kind.REFUND_SETTLEMENT,
        amounts={
            ledger.Place(_PENDING, refund.currency): -refund.amount,
            ledger.Place(_CLEARING, refund.currency): refund.amount,
        },
        refund=refund,
    )
    events.refund(refund)
    return refund


def fail(*, public_id: str, code: str) -> Refund:
    """The gateway refused: the merchant gets the amount back. Raises `NotPending`."""
    refund = _give_back(public_id, status=Refund.Status.FAILED, failure_code=storable(code, 64))
    events.refund(refund)
    return refund


def withdraw(*, public_id: str) -> Refund:
    """The gateway was never asked: the merchant gets the amount back. Raises `NotPending`."""
    return _give_back(public_id, status=Refund.Status.WITHDRAWN)


def of_charge(*, charge: Charge) -> QuerySet[Refund]:
    return Refund.objects.filter(charge=charge).select_related("charge")


def get(*, merchant: Merchant, public_id: str) -> Refund:
    """Raises `RefundNotFound`, also when it is somebody else's."""
    refunds = Refund.objects.filter(charge__merchant=merchant).select_related("charge")
    refund = refunds.filter(public_id=public_id).first() if _ID.match(public_id) else None
    if refund is None:
        raise RefundNotFound("There is no such refund.")
    return refund


def _checked_amount(charge: Charge, amount: int | None) -> int:
    if charge.status != Charge.Status.SUCCEEDED:
        raise ChargeNotRefundable(f"The charge is {charge.status}; only a succeeded one can be.")
    refundable = charge.amount - charge.amount_refunded
    amount = refundable if amount is None else amount
    if not 0 < amount <= refundable:
        raise RefundExceedsCharge(refundable=refundable)
    return amount


def _give_back(public_id: str, **changes: Any) -> Refund:
    # The charge first, as everywhere: see the lock order in `payments.ledger`.
    charge = Charge.objects.select_for_update(no_key=True).get(refunds__public_id=public_id)
    refund = _leave_pending(public_id, **changes)
    _count_refunded(charge.pk, -refund.amount)
    owner = ledger.merchant_place(merchant_id=charge.merchant_id, currency=refund.currency)
    ledger.post(
        kind=LedgerTransaction.Kind.REFUND_RETURN,
        amounts={ledger.Place(_PENDING, refund.currency): -refund.amount, owner: refund.amount},
        refund=refund,
    )
    return refund


def _count_refunded(charge_pk: int, amount: int) -> None:
    Charge.objects.filter(pk=charge_pk).update(
        amount_refunded=F("amount_refunded") + amount, version=F("version") + 1
    )


def _leave_pending(public_id: str, **changes: Any) -> Refund:
    pending = Refund.objects.filter(public_id=public_id, status=Refund.Status.PENDING)
    if not pending.update(**changes):
        raise NotPending(f"Refund {public_id} is not pending.")
    return Refund.objects.select_related("charge").get(public_id=public_id)
