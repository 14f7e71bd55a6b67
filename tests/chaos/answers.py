"""What an answer of the product means to the client that waits for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

#: Codes of problems that are kept as the answer of a key.
KEPT = frozenset(
    {
        "card_declined",
        "insufficient_funds",
        "same_account",
        "charge_not_refundable",
        "refund_exceeds_charge",
        "refund_refused",
        "force_failed",
    }
)
REUSED = "idempotency_key_reused"
ENDED_BY_OPERATOR = "force_failed"


def code_of(status: int, body: str) -> str:
    """The problem's code; empty for what is no problem."""
    if status < 400:
        return ""
    try:
        document = json.loads(body)
    except ValueError:
        return "unreadable"
    return str(document.get("code", "")) if isinstance(document, dict) else "unreadable"


def is_final(status: int, code: str) -> bool:
    """Whether this is the answer of a key, which every retry has to get."""
    return status == 201 or code in KEPT


def print_of(status: int, location: str, body: str) -> str:
    """Equal for equal answers."""
    return hashlib.sha256(f"{status}\n{location}\n{body}".encode()).hexdigest()[:24]


def resource_of(status: int, body: str) -> str:
    """The id of what was made; empty when nothing was."""
    return str(json.loads(body)["id"]) if status == 201 else ""


def replayed(headers: Mapping[str, str]) -> bool:
    return headers.get("idempotent-replayed") == "true"
