"""What a form carries of the keys on it: which they are, and how each stood when it was made."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from idempotency.core.states import State
from idempotency.operators import Seen

#: Keys in one confirmation: as many as a person can read.
MOST = 100


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
    numbers = [int(value) for value in values if value.isascii() and value.isdigit()]
    return [number for number in numbers if number < 2**63][:MOST]
