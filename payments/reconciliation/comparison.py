"""What the two sides say differently of one movement of money. Pure: no database, no network."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from payments.gateways.base import Movement, Task
from payments.reconciliation.books import Record
from payments.reconciliation.models import LedgerDifference

Kind = LedgerDifference.Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. Two that are equal but for ``moved_at`` are the same one, found twice."""

    kind: str
    movement: Task
    reference: str
    gateway_id: str
    amount_here: int = 0
    currency_here: str = ""
    amount_there: int = 0
    currency_there: str = ""
    moved_at: datetime


def of_movement(there: Movement, here: Record | None, pending_since: datetime) -> Difference | None:
    """What is wrong with a movement of the gateway. ``here``: our record of its reference.

    What is pending here, and was made after ``pending_since``, is nothing yet: it is being settled.
    """
    if here is None or not here.amount:
        on_its_way = here is not None and here.is_pending and here.created >= pending_since
        return None if on_its_way else _there(Kind.MISSING_HERE, there)
    if here.gateway_id != there.id:
        return _there(Kind.DOUBLE, there)
    if (here.amount, here.currency) == (there.amount, there.currency):
        return None
    return Difference(
        kind=Kind.AMOUNT_DIFFERS,
        movement=there.kind,
        reference=there.reference,
        gateway_id=there.id,
        amount_here=here.amount,
        currency_here=here.currency,
        amount_there=there.amount,
        currency_there=there.currency,
        moved_at=there.at,
    )


def of_posting(here: Record) -> Difference:
    """What is wrong with a posting of ours that the gateway has nothing of."""
    return Difference(
        kind=Kind.MISSING_THERE,
        movement=here.kind,
        reference=here.reference,
        gateway_id=here.gateway_id,
        amount_here=here.amount,
        currency_here=here.currency,
        moved_at=here.posted or here.created,
    )


def _there(kind: Kind, there: Movement) -> Difference:
    return Difference(
        kind=kind,
        movement=there.kind,
        reference=there.reference,
        gateway_id=there.id,
        amount_there=there.amount,
        currency_there=there.currency,
        moved_at=there.at,
    )
