"""What a POST asks for, checked. Anything wrong is 400 and leaves no trace."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from payments.gateways.simulator.errors import invalid
from payments.gateways.simulator.sources import SOURCES

#: The largest integer that every JSON reader keeps exact (RFC 8259, section 6).
MAX_AMOUNT = 2**53 - 1
MAX_TEXT = 255
_CURRENCY = re.compile(r"[A-Z]{3}")


class _Order:
    kind: str

    def parameters(self) -> str:
        """What a key is bound to; equal text means the same order."""
        return json.dumps([self.kind, asdict(self)], sort_keys=True)  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class ChargeOrder(_Order):
    kind = "charge"
    amount: int
    currency: str
    source: str
    reference: str | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> ChargeOrder:
        _only(body, {"amount", "currency", "source", "reference"})
        currency = _text(body, "currency")
        if not _CURRENCY.fullmatch(currency):
            raise invalid("currency must be three upper-case letters.")
        source = _text(body, "source")
        if source not in SOURCES:
            raise invalid(f"source is unknown; use one of {', '.join(SOURCES)}.")
        return cls(
            amount=_amount(body), currency=currency, source=source, reference=_reference(body)
        )


@dataclass(frozen=True, kw_only=True)
class RefundOrder(_Order):
    kind = "refund"
    charge: str
    amount: int
    reference: str | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> RefundOrder:
        _only(body, {"charge", "amount", "reference"})
        return cls(charge=_text(body, "charge"), amount=_amount(body), reference=_reference(body))


def _only(body: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(body) - known):
        # ascii() keeps lone surrogates, which JSON may spell and UTF-8 cannot, out of the answer.
        raise invalid(f"unknown fields: {', '.join(map(ascii, unknown))}.")


def _amount(body: Mapping[str, Any]) -> int:
    amount = body.get("amount")
    if type(amount) is not int or not 0 < amount <= MAX_AMOUNT:  # bool is an int to isinstance()
        raise invalid(f"amount must be an integer from 1 to {MAX_AMOUNT}, in minor units.")
    return amount


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise invalid(f"{name} must be a string of 1 to {MAX_TEXT} printable characters.")
    return value


def _reference(body: Mapping[str, Any]) -> str | None:
    return None if body.get("reference") is None else _text(body, "reference")
