"""What Stripe's books have: one call of ours, or all that moved in a time. To ask moves nothing.

Lists show what was written before they were asked for; the search index follows up to an hour
later (docs.stripe.com: "Search", data freshness). So what is recent is listed, and only what is
older is searched. There is a bound to each list: what is not found before it is unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import stripe

from payments.gateways.base import Movement, MovementsUnknown, Task
from payments.gateways.stripe_answers import KEY, REFERENCE, Object

#: Seconds for which the list is asked, and not the index: twice the time that it may lag.
RECENT = 2 * 3600.0
#: Seconds that our clock and Stripe's may be apart.
CLOCKS_APART = 300.0
#: The most that Stripe gives at once.
PAGE = 100
#: Pages: of one look-up, and of the movements of a time.
LOOK_UP_PAGES, MOVEMENT_PAGES = 20, 5_000

#: Tells whether an object is one that is looked for.
Wanted = Callable[[Object], bool]

_KINDS: dict[str, Task] = {
    "charge": "charge",
    "payment": "charge",
    "refund": "refund",
    "payment_refund": "refund",
}

_NOT_REFUNDED = ("failed", "canceled")


class NotAllSeen(stripe.StripeError):
    """There are more pages than are read."""


class Books:
    """Asks Stripe. Raises ``stripe.StripeError`` where it does not answer, or not in full."""

    def __init__(self, sdk: stripe.StripeClient) -> None:
        self._v1 = sdk.v1

    def intent(self, intent_id: str) -> Object:
        """An intent, as it is now."""
        return self._v1.payment_intents.retrieve(intent_id).to_dict()

    def refund(self, refund_id: str) -> Object:
        """A refund, as it is now."""
        return self._v1.refunds.retrieve(refund_id).to_dict()

    def intents(self, reference: str, wanted: Wanted) -> list[Object]:
        """The wanted ones, oldest first: the recent, or else those of that reference of any age."""
        try:
            recent = self.intents_since(time.time() - RECENT, wanted)
        except NotAllSeen:
            if found := self._searched(reference):
                return found
            raise
        return recent or self._searched(reference)

    def intents_since(self, since: float, wanted: Wanted) -> list[Object]:
        """The wanted ones since then (by our clock), oldest first."""
        first = self._v1.payment_intents.list(
            {"created": {"gte": math.floor(since - CLOCKS_APART)}, "limit": PAGE}
        )
        return _all(first, wanted)

    def _searched(self, reference: str) -> list[Object]:
        quoted = reference.replace("\\", "\\\\").replace("'", "\\'")
        query = f"metadata['{REFERENCE}']:'{quoted}'"
        found = self._v1.payment_intents.search({"query": query, "limit": PAGE})
        # The index may be behind with their states.
        return [self.intent(it.id) for it in reversed(found.data)]

    def refunds(self, intent_id: str, wanted: Wanted) -> list[Object]:
        """The wanted refunds of that intent, oldest first."""
        first = self._v1.refunds.list({"payment_intent": intent_id, "limit": PAGE})
        return _all(first, wanted)

    def movements(self, since: datetime, until: datetime) -> Iterator[Movement]:
        """See ``Gateway.movements``."""
        begin, end = math.floor(since.timestamp()), math.ceil(until.timestamp())
        expand = ["data.source", "data.source.payment_intent"]
        try:
            first = self._v1.balance_transactions.list(
                {"created": {"gte": begin, "lt": end}, "limit": PAGE, "expand": expand}
            )
            for transaction in _items(first, MOVEMENT_PAGES):
                movement = _movement(transaction)
                if movement is not None and since <= movement.at < until:
                    yield movement
        except stripe.StripeError as error:
            raise MovementsUnknown(f"Stripe's list: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MovementsUnknown(f"a movement of Stripe's cannot be read ({error!r})") from error


def _all(first: Any, wanted: Wanted) -> list[Object]:
    return [it for it in _items(first, LOOK_UP_PAGES) if wanted(it)][::-1]


def _items(page: Any, most: int) -> Iterator[Object]:
    """What is on that page and the following ones, newest first."""
    for _ in range(most):
        yield from (it.to_dict() for it in page.data)
        if not page.has_more:
            return
        page = page.next_page()
    raise NotAllSeen(f"there are more than {most * PAGE}")


def _movement(transaction: Object) -> Movement | None:
    """None for what is neither a charge nor a refund: fees, payouts, disputes; and for a refund
    that came back, which moved nothing in the end."""
    kind, source = _KINDS.get(transaction["type"]), transaction["source"]
    if kind is None or (kind == "refund" and source.get("status") in _NOT_REFUNDED):
        return None
    # The amount in the currency that was charged; the transaction's is the account's own.
    amount = source.get("amount_captured", source["amount"])
    its = source.get("payment_intent") if kind == "charge" else None
    named = its or source
    metadata = named["metadata"]
    return Movement(
        kind=kind,
        id=named["id"],
        amount=amount,
        currency=source["currency"].upper(),
        reference=metadata.get(REFERENCE, ""),
        key=metadata.get(KEY, ""),
        at=datetime.fromtimestamp(transaction["created"], UTC),
    )
