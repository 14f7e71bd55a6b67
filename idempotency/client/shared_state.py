"""How the shared breakers and budgets stand, for people to look at. Decides nothing.

What is called has a hash each, which ``lua/breaker.lua`` and ``lua/budget.lua`` describe; it is
forgotten two hours after the last call. Redis has no list of them, so its keys are walked, for as
long as the caller allows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import cast

import redis

from idempotency.client.breaker import State
from idempotency.client.shared import PREFIX

__all__ = ["BreakerStanding", "Dependencies", "Dependency", "read_dependencies"]

#: Dependencies that are read at most; each may be the receiver of somebody's webhooks.
MOST = 500
#: Keys that Redis walks in one step: a third of a millisecond of its time.
STEP = 1000
#: Seconds over which retries are summed, whatever the window of the budget.
LATELY = 60


@dataclass(frozen=True, slots=True)
class BreakerStanding:
    """The breaker of one operation, as of its last call."""

    operation: str
    state: State
    #: Seconds until an open breaker lets a probe through; zero: the next call is one.
    opens_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Dependency:
    """What is called: a gateway, a receiver, or, for a service's own budget, the service itself."""

    name: str
    breakers: tuple[BreakerStanding, ...]
    #: In the last minute, as its budget counts them.
    first_attempts: int
    retries: int

    @property
    def calm(self) -> bool:
        """Every call is let through."""
        return all(breaker.state is State.CLOSED for breaker in self.breakers)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Sorted by name. Not ``complete``: there was no time, or no room, for all."""

    found: tuple[Dependency, ...]
    complete: bool


def read_dependencies(client: redis.Redis, *, seconds: float) -> Dependencies:
    """Read what all processes share. Raises ``redis.RedisError`` and ``OSError``.

    ``client`` must have timeouts. The walk ends after ``seconds``.
    """
    names, complete = _walk(client, time.monotonic() + seconds)
    now, _micro = client.time()
    pipeline = client.pipeline(transaction=False)
    for name in names[:MOST]:
        pipeline.hgetall(name)
    hashes = pipeline.execute()
    found = [_dependency(name, fields, now) for name, fields in zip(names, hashes, strict=False)]
    return Dependencies(tuple(found), complete and len(names) <= MOST)


def _walk(client: redis.Redis, until: float) -> tuple[list[bytes], bool]:
    found, cursor = set[bytes](), 0
    while True:
        cursor, names = client.scan(cursor, match=f"{PREFIX}*", count=STEP)
        found.update(cast("list[bytes]", names))
        if cursor == 0 or time.monotonic() >= until:
            return sorted(found), cursor == 0


def _dependency(name: bytes, fields: dict[bytes, bytes], now: int) -> Dependency:
    texts = {field.decode(): value.decode() for field, value in fields.items()}
    first, spent = _attempts(texts, now)
    return Dependency(
        name.decode().removeprefix(PREFIX),
        tuple(sorted(_breakers(texts, now), key=_name)),
        first,
        spent,
    )


def _name(breaker: BreakerStanding) -> str:
    return breaker.operation


def _breakers(texts: dict[str, str], now: int) -> list[BreakerStanding]:
    """``<operation>:state``, and ``<operation>:open_until`` on the hash's clock, which may be ahead
    of the server's."""
    operations: dict[str, dict[str, str]] = defaultdict(dict)
    for field, value in texts.items():
        operation, _, what = field.rpartition(":")
        operations[operation][what] = value
    clock = now + int(texts.get("shift", 0)) / 1e6
    return [
        BreakerStanding(
            operation,
            state := State(found["state"]),
            max(0.0, int(found.get("open_until", 0)) / 1e6 - clock) if state is State.OPEN else 0.0,
        )
        for operation, found in operations.items()
        if operation and "state" in found
    ]


def _attempts(texts: dict[str, str], now: int) -> tuple[int, int]:
    """``budget:<slot>``: second, first attempts, spent."""
    clock = now + int(texts.get("shift", 0)) // 1_000_000
    first_attempts = retries = 0
    for field, value in texts.items():
        if field.startswith("budget:"):
            second, first, spent = (int(number) for number in value.split())
            if clock - LATELY < second <= clock:
                first_attempts, retries = first_attempts + first, retries + spent
    return first_attempts, retries
