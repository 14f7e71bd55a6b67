"""What a form carries of the keys on it: which they are, and how each stood when it was made."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from idempotency.core.states import State
from idempotency.operators import Seen

#: Keys in one confirmation: as many as a person can read.
MOST = 100
#: Number of a record.
LARGEST = 2**63 - 1


def token_of(key: Any) -> str:
    """A key as it is shown."""
    seen = Seen.of(key)
    return f"{key.pk}:{seen.owner}:{seen.state}:{seen.recovery_point}"


def read_tokens(values: Iterable[str]) -> dict[int, Seen]:
    """Record → how it stood on the page."""
    seen: dict[int, Seen] = {}
    for value in values:
        number, _colon, rest = value.partition(":")
        try:
            owner, state, point = rest.split(":", 2)
            shown = Seen(uuid.UUID(owner), State(state), point.replace("\0", ""))
            seen |= dict.fromkeys(read_ids([number]), shown)
        except ValueError:
            # Not of our making: nothing was seen, so there is nothing to decide.
            continue
    return seen


def read_ids(values: Iterable[str]) -> list[int]:
    """Record numbers from a request; what is none is left out."""
    numbers = [number for value in values if (number := record_number(value)) is not None]
    return numbers[:MOST]


def record_number(text: str) -> int | None:
    """The number that a text from a request is; None where no record can have it."""
    # Its length first: int() raises for very long ones.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        return None
    number = int(text)
    return number if number <= LARGEST else None
