"""Charges: what may happen to one, and how to find it.

::

    pending ──▶ succeeded     the gateway took the money; posted to the ledger
       ├──────▶ declined      the gateway refused
       └──────▶ withdrawn     the gateway was certainly not asked

Every arrow is one conditional update, so a charge leaves `pending` once, whatever ran twice.
"""

from typing import Any

from django.db.models import F, QuerySet

from payments import ids, ledger
from payments.exceptions import ChargeNotFound, NotPending
from payments.models import Charge, LedgerAccount, LedgerTransaction, Merchant, storable
from payments.webhooks import events

_ID = ids.pattern("ch")


def create_pending(
    *,
    merchant: Merchant,
    amount: int,
    currency: str,
    description: str = "",
    metadata: dict[str, Any] | None = None,
    key_id: int | None = None,
) -> Charge:
    """`key_id`: of the idempotency key that asks for it."""
    return Charge.objects.create(
        merchant=merchant,
        amount=amount,
        currency=currency,
        description=description,
        metadata=metadata or {},
        idempotency_key_id=key_id,
    )


def succeed(*, public_id: str, gateway_reference: str) -> Charge:
    """The gateway took the money: the merchant's balance grows. Raises `NotPending`."""
    charge = _leave_pending(
        public_id, status=Charge.Status.SUCCEEDED, gateway_reference=gateway_reference
    )
    clearing = ledger.Place(LedgerAccount.Kind.GATEWAY_CLEARING.value, charge.currency)
    owner = ledger.merchant_place(merchant_id=charge.merchant_id, currency=charge.currency)
    ledger.post(
        kind=LedgerTransaction.Kind.CHARGE,
        amounts={clearing: -charge.amount, owner: charge.amount},
        charge=charge,
    )
    events.charge(charge)
    return charge


def decline(*, public_id: str, code: str) -> Charge:
    """The gateway refused. Raises `NotPending`."""
    charge = _leave_pending(
        public_id, status=Charge.Status.DECLINED, decline_code=storable(code, 64)
    )
    events.charge(charge)
    return charge


def withdraw(*, public_id: str) -> Charge:
    """The gateway was never asked. Raises `NotPending`."""
    return _leave_pending(public_id, status=Charge.Status.WITHDRAWN)


def edit(*, charge: Charge, changes: dict[str, Any]) -> Charge:
    """Write description or metadata; `charge` must be locked, so its version is the latest."""
    if not changes:
        return charge
    for field, value in changes.items():
        setattr(charge, field, value)
    charge.version += 1
    charge.save(update_fields=[*changes, "version"])
    return charge


def of_merchant(*, merchant: Merchant) -> QuerySet[Charge]:
    return Charge.objects.filter(merchant=merchant)


def get(*, merchant: Merchant, public_id: str) -> Charge:
    """Raises `ChargeNotFound`, also when it is somebody else's."""
    return _one(of_merchant(merchant=merchant), public_id)


def lock(*, merchant: Merchant, public_id: str) -> Charge:
    """The charge, and nobody else changes it until this transaction ends."""
    return _one(of_merchant(merchant=merchant).select_for_update(no_key=True), public_id)


def _one(charges: QuerySet[Charge], public_id: str) -> Charge:
    # What cannot be an id need not reach the database, which would refuse a NUL with an error.
    charge = charges.filter(public_id=public_id).first() if _ID.match(public_id) else None
    if charge is None:
        raise ChargeNotFound("There is no such charge.")
    return charge


def _leave_pending(public_id: str, **changes: Any) -> Charge:
    pending = Charge.objects.filter(public_id=public_id, status=Charge.Status.PENDING)
    if not pending.update(version=F("version") + 1, **changes):
        raise NotPending(f"Charge {public_id} is not pending.")
    # Read after the write: the row is locked by it now.
    return Charge.objects.get(public_id=public_id)
