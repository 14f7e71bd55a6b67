"""Ends a charge or a refund as it is found to have ended, together with the key that asked for it.

The key is completed too, so every retry of the merchant's gets the answer that comes of it; and a
worker that comes back from the dead finds its lease lost.
"""

from __future__ import annotations

from django.db import transaction

from idempotency import operators
from idempotency.operations import Done, Refused
from payments import charges, refunds
from payments.models import Charge, Refund


def is_held(movement: Charge | Refund) -> bool:
    """Whether somebody is at it now, and about to know how it ended."""
    standing = _standing(movement)
    return standing is not None and standing.is_held


def settle(movement: Charge | Refund, outcome: Done | Refused, *, actor: str, reason: str) -> bool:
    """False: nothing was written, because somebody is at it, or because it changed meanwhile. Look
    again later.

    Raises `NotPending` when it has ended meanwhile. Not for use in a transaction.
    """
    key_id, standing = movement.idempotency_key_id, _standing(movement)
    if key_id is None:
        # Of a release before ours. The reconciliation finds it from its key.
        return False
    if standing is None or standing.is_over:
        # An operator ended the key, so nobody waits for an answer. The money is real all the same.
        with transaction.atomic():
            _end(movement, outcome)
        return True
    if standing.is_held:
        return False
    return operators.settle(key_id, seen=standing.seen, outcome=outcome, actor=actor, reason=reason)


def _standing(movement: Charge | Refund) -> operators.Standing | None:
    key_id = movement.idempotency_key_id
    return None if key_id is None else operators.standing(key_id)


def _end(movement: Charge | Refund, outcome: Done | Refused) -> None:
    service = charges if isinstance(movement, Charge) else refunds
    if isinstance(outcome, Done):
        service.succeed(public_id=movement.public_id, gateway_reference=outcome.result["id"])
    elif isinstance(movement, Charge):
        charges.decline(public_id=movement.public_id, code=outcome.result["code"])
    else:
        refunds.fail(public_id=movement.public_id, code=outcome.result["code"])
