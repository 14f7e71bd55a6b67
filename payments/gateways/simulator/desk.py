"""What the gateway does with an order: dedupe, misbehave, write the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from payments.gateways.simulator.errors import Problem, unavailable
from payments.gateways.simulator.ledger import Books, Entry, Ledger, Request
from payments.gateways.simulator.orders import ChargeOrder, RefundOrder
from payments.gateways.simulator.sources import SOURCES, Source


@dataclass(kw_only=True)
class Control:
    """Switches for tests; they live as long as the process."""

    #: False: every POST moves money anew, whatever its key.
    dedupe: bool = True
    #: True: 503 to every POST.
    down: bool = False
    #: Seconds that every POST waits before anything else happens to it.
    delay: float = 0.0


@dataclass(frozen=True)
class Outcome:
    entry: Entry
    replayed: bool


class Desk:
    """Runs orders. Thread-safe."""

    def __init__(
        self, ledger: Ledger, control: Control, tell: Callable[[Entry], None] = lambda entry: None
    ) -> None:
        """`tell` is called with each new entry, once it is committed."""
        self.ledger = ledger
        self.control = control
        self._tell = tell

    def charge(self, order: ChargeOrder, key: str | None) -> Outcome:
        source = SOURCES[order.source]
        outcome = self._run(order, key, source)
        if outcome.entry.status == "declined":
            raise Problem(402, "card_declined", "The card was declined.", processed=True)
        return outcome

    def refund(self, order: RefundOrder, key: str | None) -> Outcome:
        return self._run(order, key, Source())

    def _run(self, order: ChargeOrder | RefundOrder, key: str | None, source: Source) -> Outcome:
        time.sleep(self.control.delay)
        if self.control.down or source.down:
            raise unavailable()
        if source.seconds and not self._answered(key):
            time.sleep(source.seconds)
        written = None
        # The transaction is exclusive: of two requests with one key, the later finds the answer.
        with self.ledger.transaction() as books:
            request = self._arrive(books, order, key)
            first = self._first_answer(books, request)
            if first is not None:
                return Outcome(first, replayed=True)
            ending = source.before(request.attempts)
            if ending is None:
                written = _write(books, order, key, source)
                ending = source.after(request.attempts)
        if written is not None:
            self._tell(written)
        # Raised only here: inside the transaction it would undo the count and the charge.
        if ending is not None:
            raise ending
        return Outcome(written, replayed=False)

    def _arrive(self, books: Books, order: ChargeOrder | RefundOrder, key: str | None) -> Request:
        parameters = order.parameters()
        if key is None:
            return Request(parameters, 1, None)
        request = books.count_request(key, parameters)
        if self.control.dedupe and request.parameters != parameters:
            message = "This key was first used with other parameters."
            raise Problem(422, "idempotency_key_reused", message)
        return request

    def _first_answer(self, books: Books, request: Request) -> Entry | None:
        if not self.control.dedupe or request.entry is None:
            return None
        return books.get(request.entry)

    def _answered(self, key: str | None) -> bool:
        if key is None or not self.control.dedupe:
            return False
        with self.ledger.transaction() as books:
            return books.answered(key)


def _write(
    books: Books, order: ChargeOrder | RefundOrder, key: str | None, source: Source
) -> Entry:
    if isinstance(order, RefundOrder):
        return _write_refund(books, order, key)
    return books.add(
        key=key,
        kind=order.kind,
        status="declined" if source.declines else "succeeded",
        amount=order.amount,
        currency=order.currency,
        charge=None,
        reference=order.reference,
    )


def _write_refund(books: Books, order: RefundOrder, key: str | None) -> Entry:
    """Refunds that race cannot exceed the charge together: the transaction is exclusive."""
    charge = books.get(order.charge)
    if charge is None or charge.kind != "charge" or charge.status != "succeeded":
        raise Problem(422, "charge_unknown", "There is no such charge.", processed=False)
    left = charge.amount - books.refunded(charge.id)
    if order.amount > left:
        message = f"The refund exceeds what is left of the charge ({left})."
        raise Problem(422, "refund_exceeds_charge", message, processed=False)
    return books.add(
        key=key,
        kind=order.kind,
        status="succeeded",
        amount=order.amount,
        currency=charge.currency,
        charge=charge.id,
        reference=order.reference,
    )
