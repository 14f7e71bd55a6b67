"""Settles what an event says has ended. The gateway's books decide; the event says when to look.

======================  ==========================================================================
our charge or refund    what follows
======================  ==========================================================================
pending                 the gateway is asked, and it is settled as its books say. Where it cannot
                        be asked, as the event says, if that is about the same money as ours
in somebody's hands     later again: the request that made it will know first
settled like that       nothing
settled otherwise       dead letter: an operator looks, and the nightly comparison lists it
not there, or not in    later again, then dead letter. A charge is written before the gateway is
the gateway's books     asked, so its event cannot be early; but either side may be an old backup
======================  ==========================================================================
"""

from __future__ import annotations

from idempotency.operations import Done, Outcome, Refused, Unknown
from idempotency.outbox import Dead, Delivered, Ending, Message, Retry
from payments import settlement
from payments.exceptions import NotPending
from payments.gateways.base import Task, find
from payments.gateways.choice import get_gateway
from payments.gateways.events import Ended
from payments.models import Charge, Refund

ACTOR = "gateway event"
IN_HANDS = "Somebody else is at it."


def settle(message: Message) -> Ending:
    """Settle what the event in this message says."""
    ended = Ended(**message.payload)
    movement = _movement(ended)
    if movement is None:
        return Retry(f"There is no {ended.kind} {ended.reference}.")
    if movement.status != "pending":
        return _compared(movement, ended)
    if settlement.is_held(movement):
        return Retry(IN_HANDS)
    outcome = _asked(movement)
    if isinstance(outcome, Unknown) and _is_the_same(movement, ended):
        outcome = _outcome(ended)
    if isinstance(outcome, Done | Refused):
        return _settled(movement, outcome, ended)
    return Retry(f"The gateway's books do not tell: {outcome.reason}")


def _settled(movement: Charge | Refund, outcome: Done | Refused, ended: Ended) -> Ending:
    reason = f"the gateway told of {ended.id}"
    try:
        if settlement.settle(movement, outcome, actor=ACTOR, reason=reason):
            return Delivered("settled")
    except NotPending:
        return Retry("It has just been settled: to be compared.")
    return Retry(IN_HANDS)


def _movement(ended: Ended) -> Charge | Refund | None:
    if ended.kind == "charge":
        return Charge.objects.filter(public_id=ended.reference).first()
    refunds = Refund.objects.select_related("charge")
    return refunds.filter(public_id=ended.reference).first()


def _is_the_same(movement: Charge | Refund, ended: Ended) -> bool:
    """Whether the event is about what we asked for."""
    if isinstance(movement, Refund) and movement.charge.gateway_reference != ended.charge:
        return False
    return (movement.amount, movement.currency) == (ended.amount, ended.currency)


def _compared(movement: Charge | Refund, ended: Ended) -> Ending:
    """What an event says of something that has ended here already."""
    moved = movement.status == "succeeded"
    same = movement.gateway_reference == ended.id and _is_the_same(movement, ended)
    if moved == ended.moved and (same or not moved):
        return Delivered("known already")
    there = "moved" if ended.moved else "did not move"
    return Dead(f"Here it is {movement.status}; the gateway {there} {ended.amount} as {ended.id}.")


def _outcome(ended: Ended) -> Done | Refused:
    if ended.moved:
        return Done({"id": ended.id})
    return Refused({"status": 402, "code": ended.code, "message": ""})


def _asked(movement: Charge | Refund) -> Outcome:
    """What the gateway itself says of it. Its downstream key is not known here."""
    kind: Task = "charge" if isinstance(movement, Charge) else "refund"
    charge = movement.charge.gateway_reference if isinstance(movement, Refund) else ""
    return find(get_gateway(), kind, reference=movement.public_id, charge=charge)
