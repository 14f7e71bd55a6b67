"""The breaker and the budget of many processes, kept in Redis (or Valkey).

One hash for each dependency, ``idempotency:client:<dependency>``. Every decision is one Lua script,
taken inside the server and by the server's clock: no two processes can hold the same permit, and no
process's clock matters. A probe's permit is a lease that the server takes back.

Redis is never in the way. While it does not answer, each process decides for itself with the local
breaker and budget (whose floor is then per process), and one call in ``pause`` seconds looks
whether it is back. Nothing here raises because of Redis; the most a call can lose is a few of the
link's short timeouts.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import resources
from typing import Any, ClassVar, Self

import redis

from idempotency.client.breaker import (
    SOON,
    Admission,
    BreakerOpen,
    BreakerPolicy,
    CircuitBreaker,
    Outcome,
    State,
    report_change,
    tell_listener,
)
from idempotency.client.budget import BudgetPolicy, RetryBudget, Ticket
from idempotency.client.window import exact

__all__ = ["RedisLink", "SharedBreaker", "SharedBudget"]

logger = logging.getLogger("idempotency.client")

#: Before the name of a dependency: the key of its hash.
PREFIX = "idempotency:client:"
_TIMES = ("slow_call", "open_for", "open_cap", "lease")


class RedisLink:
    """A way to Redis that gives up quickly, and comes back by itself. Safe for threads and forks.

    One for each process and server; breakers and budgets share it.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client`` must have timeouts; ``connect`` makes one that has.

        ``pause``: seconds for which a Redis that failed is left alone.
        """
        self._client = client
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._lost_until: float | None = None

    @classmethod
    def connect(cls, url: str, *, timeout: float = 0.1, pause: float = 1.0) -> Self:
        """A link to ``url``, each of whose waits (connecting, writing, reading) ends in ``timeout``
        seconds. Connects on first use."""
        client = redis.Redis.from_url(
            url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None
        )
        return cls(client, pause=pause)

    @property
    def connected(self) -> bool:
        """Whether Redis answered the last time it was asked."""
        return self._lost_until is None

    def run(self, script: str, key: str, *arguments: str | int | float) -> Any:
        """Run a script on one key and return its reply, or None while Redis is away."""
        if not self._may_ask():
            return None
        try:
            reply = self._client.register_script(script)(keys=[key], args=arguments)
        except (redis.RedisError, OSError) as error:
            self._lose(error)
            return None
        self._find()
        return reply

    def _may_ask(self) -> bool:
        if self._lost_until is None:
            return True
        with self._lock:
            now = self._clock()
            if self._lost_until is None or now < self._lost_until:
                return self._lost_until is None
            # This call looks; the others need not all wait for a timeout.
            self._lost_until = now + self._pause
            return True

    def _lose(self, error: Exception) -> None:
        with self._lock:
            was_connected = self._lost_until is None
            self._lost_until = self._clock() + self._pause
        if was_connected:
            logger.warning("Redis is away, each process decides for itself: %s", error)

    def _find(self) -> None:
        if self._lost_until is not None:
            with self._lock:
                self._lost_until = None
            logger.info("Redis is back, decisions are shared again")


class SharedBreaker:
    """The breaker of one operation for every process. Like ``CircuitBreaker``, and its equal in
    every decision."""

    blocks: ClassVar[bool] = True

    def __init__(
        self,
        link: RedisLink,
        dependency: str,
        operation: str,
        policy: BreakerPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        on_change: Callable[[State, State], None] | None = None,
    ) -> None:
        """``clock`` measures how long a call took; all else is decided by the server's.

        Processes must agree on the policy: each applies its own to the common counts.
        ``on_change`` is told as well of what other processes changed, once a call finds it so.
        """
        self.name = f"{dependency} {operation}"
        self.policy = policy or BreakerPolicy()
        self.local = CircuitBreaker(
            self.policy, name=f"{self.name} (local)", clock=clock, rng=rng, on_change=on_change
        )
        self._link = link
        self._key = PREFIX + dependency
        self._arguments = (operation, _breaker_policy(self.policy))
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._on_change = on_change
        self._state = State.CLOSED

    @property
    def state(self) -> State:
        """The state as of the last call: of all processes, or of this one while Redis is away."""
        return self._state if self._link.connected else self.local.state

    def admit(self) -> Admission:
        """Let one call through. Raises ``BreakerOpen``."""
        reply = self._run("admit")
        if reply is None:
            return self.local.admit()
        admitted, generation, probe, wait = (int(number) for number in reply[:4])
        if not admitted:
            raise BreakerOpen(retry_after=wait / 1e6)
        return Admission(generation, self._clock(), probe, shared=True)

    def settle(self, admission: Admission, outcome: Outcome) -> None:
        """Say how an admitted call ended, where it was admitted.

        A result that Redis does not hear is lost: the window misses one call, or a probe's lease
        runs out.
        """
        if not admission.shared:
            self.local.settle(admission, outcome)
        elif not admission.settled:
            admission.settled = True
            slow = self._clock() - admission.started >= self.policy.slow_call
            draw = self._rng.random()
            about = (admission.generation, admission.probe, outcome.value, int(slow), draw)
            self._run("settle", *about)

    def _run(self, command: str, *about: str | int | float) -> Any:
        reply = self._link.run(_breaker_script, self._key, *self._arguments, command, *about)
        if reply is not None:
            old, new = (State(_text(state)) for state in reply[4:])
            seen, self._state = self._state, new
            if old is not new:
                report_change(self.name, old, new, self._on_change)
            elif seen is not new:
                tell_listener(self.name, seen, new, self._on_change)
        return reply


class SharedBudget:
    """The retry budget of one dependency for every process. Like ``RetryBudget``; its floor holds
    for all of them together."""

    blocks: ClassVar[bool] = True

    def __init__(
        self,
        link: RedisLink,
        dependency: str,
        policy: BudgetPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` is the local budget's, which is used while Redis is away."""
        self.policy = policy or BudgetPolicy()
        self.local = RetryBudget(self.policy, clock=clock)
        self._link = link
        self._key = PREFIX + dependency
        self._policy = _budget_policy(self.policy)

    def credit(self) -> None:
        """Count a first attempt that passed the breaker."""
        if self._run("credit") is None:
            self.local.credit()

    def spend(self, *, hedge: bool = False) -> Ticket | None:
        """Take one retry or hedge out of the budget, or None where there is none left."""
        reply = self._run("spend", int(hedge))
        if reply is None:
            return self.local.spend(hedge=hedge)
        granted, second = reply
        return Ticket(int(second), shared=True) if int(granted) else None

    def refund(self, ticket: Ticket) -> None:
        """Give a ticket back to where it came from. What Redis does not hear stays spent."""
        if not ticket.shared:
            self.local.refund(ticket)
        elif not ticket.returned:
            ticket.returned = True
            self._run("refund", ticket.second)

    def _run(self, command: str, *about: int) -> Any:
        return self._link.run(_budget_script, self._key, self._policy, command, *about)


def _script(name: str) -> str:
    folder = resources.files("idempotency.client") / "lua"
    return "".join((folder / f"{part}.lua").read_text() for part in ("clock", name))


_breaker_script = _script("breaker")
_budget_script = _script("budget")


def _breaker_policy(policy: BreakerPolicy) -> str:
    """The policy for the script: times in whole microseconds, ratios as whole numbers."""
    values: dict[str, float] = asdict(policy)
    for name in _TIMES:
        values[name] = round(values[name] * 1e6)
    for name in ("failure", "slow"):
        ratio = exact(values.pop(f"{name}_ratio"))
        values |= {f"{name}_numerator": ratio.numerator, f"{name}_denominator": ratio.denominator}
    return json.dumps(values | {"soon": SOON * 1e6})


def _budget_policy(policy: BudgetPolicy) -> str:
    ratio = exact(policy.ratio)
    return json.dumps(
        {
            "window": policy.window,
            "floor": policy.floor,
            "numerator": ratio.numerator,
            "denominator": ratio.denominator,
        }
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
