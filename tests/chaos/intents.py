"""What merchants want, out of a seed: an endless stream of payments, each with a key of its own."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Any

#: Merchants there are; an account that a paused worker has locked stops only its own.
MERCHANTS = 12
CURRENCIES = ("EUR", "USD")


class Plan(enum.Enum):
    """How the client of one intent behaves."""

    PLAIN = "plain"
    #: The same request two or three times at once.
    DOUBLE = "double"
    #: Hangs up on its first request, and comes back.
    HANG_UP = "hang_up"
    #: Hangs up and never comes back.
    NEVER = "never"
    #: Once it has its answer, uses the key for another request as well.
    OTHER = "other"
    #: Once it has its answer, asks for it again later.
    AGAIN = "again"


_PLANS = {
    Plan.PLAIN: 70,
    Plan.DOUBLE: 10,
    Plan.HANG_UP: 6,
    Plan.NEVER: 4,
    Plan.OTHER: 4,
    Plan.AGAIN: 6,
}
_SOURCES = {
    "tok_visa": 790,
    "tok_answer_lost": 50,
    "tok_error_after": 40,
    "tok_error_before": 20,
    "tok_declined": 85,
    "tok_busy": 10,
    "tok_slow": 5,
}
_POINTS = {
    "transfer": ("claimed", "work", "committed"),
    "charge": ("claimed", "work", "prepared", "called", "finalize", "committed"),
    "refund": ("claimed", "prepared", "called", "committed"),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """What the stream is made of."""

    kinds: dict[str, int]
    #: The part of the requests that ask to be broken where they say.
    faults: float = 0.006


EVERYDAY = Mix({"transfer": 58, "charge": 34, "refund": 8})


@dataclass(frozen=True, slots=True)
class Intent:
    """One payment that a merchant wants."""

    key: str
    kind: str
    merchant: int
    #: Of a transfer: to whom.
    recipient: int
    amount: int
    currency: str
    source: str
    plan: Plan
    #: X-Demo-Fault of its first request.
    fault: str
    #: Its client's own dice.
    seed: int


class Stream:
    """Draws intents. The same seed and mix draw the same ones."""

    def __init__(self, seed: int, mix: Mix = EVERYDAY) -> None:
        self._rng = random.Random(f"intents {seed}")
        self._seed, self._mix = seed, mix
        self._number = 0

    def draw(self) -> Intent:
        rng = self._rng
        self._number += 1
        kind = _pick(rng, self._mix.kinds)
        merchant, recipient = rng.sample(range(MERCHANTS), 2)
        amount = rng.randint(400, 2000) if kind == "charge" else rng.randint(1, 40)
        return Intent(
            key=f"chaos-{self._seed}-{self._number:06d}",
            kind=kind,
            merchant=merchant,
            recipient=recipient,
            amount=amount,
            currency=rng.choice(CURRENCIES),
            source=_pick(rng, _SOURCES),
            plan=_pick(rng, _PLANS),
            fault=self._fault(kind),
            seed=rng.getrandbits(32),
        )

    def _fault(self, kind: str) -> str:
        rng = self._rng
        if rng.random() >= self._mix.faults:
            return ""
        return rng.choice([*(f"kill@{point}" for point in _POINTS[kind]), "commit", "drop"])


def _pick(rng: random.Random, weights: dict[Any, int]) -> Any:
    return rng.choices(list(weights), list(weights.values()))[0]
