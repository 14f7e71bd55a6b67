"""What Stripe's answers and objects say about the money. Pure: no network, no clock.

How its keys work (docs.stripe.com: "Idempotent requests", "Advanced error handling"): the first
result is kept for at least 24 hours, *whatever it was, a 500 included*, and given again with
``Idempotent-Replayed: true``; the same key with other parameters is a 400, and while the first
request runs a 409. Nothing is kept of a 401, of a 429 and of parameters that are not valid, because
those are refused before anything runs. So a 500 is final under its key, and says nothing about the
money: what happened has to be looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.answers import Answer, json_object

#: The product's test tokens, as Stripe calls such cards. Anything else is passed on.
TEST_CARDS = {"tok_visa": "pm_card_visa", "tok_declined": "pm_card_chargeCustomerFail"}

#: Stripe counts these in other units than ISO 4217 does (docs.stripe.com: "Supported currencies"):
#: the same number is a hundred times as much, or as little.
OTHER_UNITS = {"ISK", "MGA", "UGX"}

#: The names in an object's metadata.
REFERENCE, KEY = "reference", "idempotency_key"

_MONEY = {"amount", "currency"}
_REFUSALS = {"card_error", "invalid_request_error"}
#: Another request holds the object: nothing has been decided yet.
_RUNNING = {"idempotency_key_in_use", "lock_timeout"}
#: An earlier request has moved the intent on, and how has to be looked up.
_MOVED_ON = "payment_intent_unexpected_state"
#: The API key is wrong, or may not do this: said before anything runs.
_NOT_LET_IN = {401, 403}
#: A repeat may end otherwise. 500 is not among them: its result is kept under the key.
_PASSING = {408, 409, 425, 502, 503, 504}

Object = dict[str, Any]


def classify(
    status: int, headers: Mapping[str, str], body: bytes, retry_after: float | None = None
) -> Answer:
    """Read one HTTP answer. ``Done`` means that the step was taken; what it did to the money is in
    the object. ``headers``: with names in lower case."""
    content = json_object(body)
    if 200 <= status < 300:
        if isinstance(content.get("object"), str):
            return Answer(Done(content))
        return Answer(Unknown("Stripe's answer cannot be read"), passing=True)
    error = content.get("error")
    if not (isinstance(error, dict) and isinstance(error.get("type"), str)):
        # Nothing that Stripe says looks like this: a proxy's word, or a damaged answer.
        return Answer(Unknown(f"somebody answered {status} for Stripe"), passing=True)
    return _of_error(status, headers, error, retry_after)


def _of_error(
    status: int, headers: Mapping[str, str], error: Object, retry_after: float | None
) -> Answer:
    kind, code = error["type"], error.get("code")
    reason = f"Stripe answered {status} {code or kind}"
    passing = _may_pass(status, headers)
    if status in _NOT_LET_IN:
        return Answer(NotSent(reason))
    if code in _RUNNING or kind == "idempotency_error" or code == _MOVED_ON:
        return Answer(Unknown(reason), passing or code in _RUNNING, retry_after)
    if status == 429 or code == "rate_limit":
        return Answer(NotSent(reason, retry_after), True, retry_after)
    if 400 <= status < 500 and status != 409 and kind in _REFUSALS:
        return Answer(Refused(refusal(status, error)))
    return Answer(Unknown(reason), passing, retry_after)


def _may_pass(status: int, headers: Mapping[str, str]) -> bool:
    if headers.get("idempotent-replayed") == "true":
        return False
    told = headers.get("stripe-should-retry")
    return told == "true" if told in ("true", "false") else status in _PASSING


def refusal(status: int, error: Mapping[str, Any]) -> Object:
    """What a refusal is to the product. The bank's reason, where there is one, is the better
    code."""
    code = error.get("decline_code") or error.get("code") or error.get("type") or "refused"
    return {"status": status, "code": str(code), "message": str(error.get("message") or "")}


def of_intent(intent: Object) -> Outcome:
    """What an intent says about the money."""
    status, error = intent.get("status"), intent.get("last_payment_error")
    if status == "succeeded":
        return Done(_record(intent))
    if status == "requires_payment_method" and isinstance(error, dict):
        return Refused(refusal(402, error))
    if status == "canceled":
        return Refused(refusal(402, {"code": "canceled", "message": "The payment was cancelled."}))
    return Unknown(f"the payment intent is in {status}")


def of_refund(refund: Object) -> Outcome:
    """What a refund says about the money."""
    status = refund.get("status")
    if status == "succeeded":
        return Done(_record(refund))
    if status in ("failed", "canceled"):
        reason = refund.get("failure_reason") or status
        return Refused(refusal(422, {"code": reason, "message": f"The refund {status}."}))
    return Unknown(f"the refund is in {status}")


def _record(it: Object) -> Object:
    """What is needed of it later, without the secret that lets a browser confirm it."""
    return {name: it.get(name) for name in ("id", "status", "amount", "currency")}


def is_of(reference: str, key: str) -> Callable[[Object], bool]:
    """Tells whether an object was made for that reference, or with that key."""

    def told(it: Object) -> bool:
        metadata = it.get("metadata") or {}
        return metadata.get(REFERENCE) == reference or bool(key and metadata.get(KEY) == key)

    return told


def is_outcome_of(order: Mapping[str, Any]) -> Callable[[Object], bool]:
    """Tells whether an object is what became of that very order. One of another amount is another
    request's, whatever its names."""

    def told(it: Object) -> bool:
        named = (it.get("metadata") or {}).get(REFERENCE) == order["metadata"][REFERENCE]
        return named and all(it.get(name) == order[name] for name in _MONEY & order.keys())

    return told


def first_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several, oldest first: one that moved money, else one not done, else a refusal."""
    found = list(outcomes)
    for kind in (Done, Unknown, Refused):
        for outcome in found:
            if isinstance(outcome, kind):
                return outcome
    return NotSent("Stripe's books do not have it")
