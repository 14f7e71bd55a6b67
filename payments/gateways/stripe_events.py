"""What Stripe tells us. Its signature is checked by its own library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import stripe
from rest_framework.exceptions import ParseError

from idempotency.operations import Done, Unknown
from payments.exceptions import NotSigned
from payments.gateways.events import Ended, Event
from payments.gateways.stripe_answers import REFERENCE, Object, of_intent, of_refund

SIGNATURE = "Stripe-Signature"


def read_event(body: bytes, headers: Mapping[str, str], secret: str) -> Event:
    """Check and read one event. Raises ``NotSigned`` and ``ParseError``.

    The body of a later delivery differs (``pending_webhooks`` counts down), so it is not compared:
    Stripe's id says which event it is.
    """
    given = headers.get(SIGNATURE, "")
    try:
        # In ASCII, or the library's comparison raises TypeError.
        given.encode("ascii")
        event = stripe.Webhook.construct_event(body, given, secret).to_dict()
    except stripe.SignatureVerificationError as error:
        raise NotSigned(f"{error.user_message}.") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise NotSigned("The signature or the body cannot be read.") from error
    try:
        return Event(id=event["id"], ended=_ended(event["data"]["object"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ParseError("This is no event of Stripe's.") from error


def _ended(it: Object) -> Ended | None:
    """None for what is not done, and for what is none of ours."""
    reference = (it.get("metadata") or {}).get(REFERENCE)
    meanings: dict[str, Any] = {"payment_intent": of_intent, "refund": of_refund}
    meaning = meanings.get(it["object"])
    if meaning is None or not reference:
        return None
    outcome = meaning(it)
    if isinstance(outcome, Unknown):
        return None
    moved = isinstance(outcome, Done)
    is_refund = it["object"] == "refund"
    return Ended(
        kind="refund" if is_refund else "charge",
        moved=moved,
        reference=reference,
        id=it["id"],
        amount=it["amount"],
        currency=it["currency"].upper(),
        charge=it["payment_intent"] if is_refund else "",
        code="" if moved else outcome.result["code"],
    )
