"""What the conformance suite holds an adapter against: a gateway, and a proxy that spoils things.

A bench keeps keys, or it does not. What the gateway really did is read from its own books, past the
proxy and past the adapter.
"""

from __future__ import annotations

import uuid
from typing import Any

from idempotency.operations import Outcome
from payments.gateways.base import Gateway
from payments.gateways.http import HttpGateway
from payments.gateways.stripe import StripeGateway
from tests.integration.gateways.stripe.servers import (
    API_KEY,
    Ending,
    Front,
    Localstripe,
    StripeRules,
)
from tests.plugins.gateway import GatewayProcess

#: Turned away before anything ran; something went wrong; in the words of both languages.
BUSY = {"type": "invalid_request_error", "code": "rate_limit", "message": "", "processed": False}
BROKEN = {"type": "api_error", "code": "internal_error", "message": ""}


def busy() -> Ending:
    return Ending(429, {"error": BUSY})


def broken(*, executed: bool) -> Ending:
    return Ending(500, {"error": BROKEN}, executed)


#: An adapter for tests: it does not wait, and has room for all of them.
QUICK: dict[str, Any] = {"pause": lambda seconds: None, "calls": 100}


class Bench:
    """One adapter, its gateway and the proxy between them; `reference` and `key` are its own."""

    #: Whether the gateway does the work of one key once.
    keeps_keys = True
    #: Whether it refuses to give back more than was charged.
    bounds_refunds = True

    def __init__(self, front: Front) -> None:
        self.front = front
        self.adapter = self.connect(front.url)
        self.reference = f"ch_{uuid.uuid4().hex}"
        self.key = uuid.uuid4().hex

    def connect(self, url: str, **options: Any) -> Gateway:
        """An adapter that does not wait between its attempts."""
        raise NotImplementedError

    def moved(self, reference: str | None = None) -> list[tuple[str, int]]:
        """What the gateway did for a reference, by its own books."""
        raise NotImplementedError

    def charge(self, source: str = "tok_visa", *, amount: int = 1000, **its: Any) -> Outcome:
        asked = {"reference": self.reference, "key": self.key, **its}
        return self.adapter.charge(amount=amount, currency="EUR", source=source, **asked)

    def refund(self, charge: str, *, amount: int = 400) -> Outcome:
        return self.adapter.refund(
            charge=charge, amount=amount, reference=f"re_{self.reference}", key=f"re{self.key}"
        )

    def find_charge(self) -> Outcome:
        return self.adapter.find_charge(reference=self.reference, key=self.key)

    def find_refund(self, charge: str) -> Outcome:
        return self.adapter.find_refund(
            charge=charge, reference=f"re_{self.reference}", key=f"re{self.key}"
        )

    @property
    def refunded(self) -> list[tuple[str, int]]:
        return self.moved(f"re_{self.reference}")


class SimulatorBench(Bench):
    """The simulated gateway, in the two kinds that it comes in."""

    def __init__(self, front: Front, process: GatewayProcess, *, keeps_keys: bool = True) -> None:
        self.keeps_keys = keeps_keys
        self._process = process
        super().__init__(front)

    def connect(self, url: str, **options: Any) -> Gateway:
        return HttpGateway(url, dedupes=self.keeps_keys, **QUICK, **options)

    def moved(self, reference: str | None = None) -> list[tuple[str, int]]:
        its = reference or self.reference
        entries = [entry for entry in self._process.ledger() if entry["reference"] == its]
        return [(entry["kind"], entry["amount"]) for entry in entries]


class StripeBench(Bench):
    """localstripe, with Stripe's rules for keys before it or without any."""

    bounds_refunds = False

    def __init__(self, front: Front, books: Localstripe, **options: Any) -> None:
        self.keeps_keys = isinstance(front, StripeRules)
        self._books, self._options = books, options
        super().__init__(front)

    def connect(self, url: str, **options: Any) -> Gateway:
        given = {"api_key": API_KEY, "dedupes": self.keeps_keys, **QUICK, **self._options}
        return StripeGateway(url, **given, **options)

    def moved(self, reference: str | None = None) -> list[tuple[str, int]]:
        its = reference or self.reference
        return [
            (it["object"].removeprefix("payment_intent") or "charge", it["amount"])
            for it in [*self._books.intents(its), *self._books.refunds(its)]
            if it["status"] == "succeeded"
        ]
