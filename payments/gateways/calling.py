"""What the adapters to gateways over HTTP have in common: the client half around their calls."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx2
from django.core.exceptions import ImproperlyConfigured

from idempotency.client import (
    BreakerOpen,
    BreakerPolicy,
    BreakerRegistry,
    BudgetPolicy,
    BulkheadFull,
    CircuitBreaker,
    DeadlineExceeded,
    FullJitter,
    HedgePolicy,
    RedisLink,
    RetryBudget,
    SharedBreaker,
    SharedBudget,
    classify,
)
from idempotency.client import Outcome as Health
from idempotency.client.caller import Caller
from idempotency.client.history import CallResult
from idempotency.client.httpx2_transports import Httpx2Transport
from idempotency.client.observers import LoggingObserver, PrometheusObserver
from idempotency.client.policy import CallPolicy, Options
from idempotency.client.transports import Transport
from idempotency.operations import NotSent, Outcome, Unknown
from payments.gateways.base import Task
from payments.gateways.readings import (
    RETRY_AFTER_LIMIT,
    Reading,
    ReadingTransport,
    decide,
)
from payments.gateways.room import Reservation, Room

logger = logging.getLogger("payments.gateways")

#: Back-off before attempt n + 1: a draw from U(0, min(CAP, BASE · 2ⁿ⁻¹)) seconds (full jitter).
BACKOFF_BASE = 0.1
BACKOFF_CAP = 1.0
#: Retries a minute: a tenth of the calls, or this many. Fewer would leave a call that comes alone
#: without its third attempt.
BUDGET = BudgetPolicy(ratio=0.1, floor=10)
MAX_ANSWER = 1024 * 1024

#: The names in ``settings.PAYMENTS_GATEWAY``, and what they are here.
OPTIONS = {
    "TIMEOUT": "timeout",
    "ATTEMPTS": "attempts",
    "DEDUPES": "dedupes",
    "DEDUPES_FOR": "dedupes_for",
    "CALLS": "calls",
    "REDIS_URL": "redis_url",
    "HEDGING": "hedging",
}


def options_of(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments that settings mean. An unknown name raises
    ``ImproperlyConfigured``."""
    if unknown := given.keys() - names:
        raise ImproperlyConfigured(f"PAYMENTS_GATEWAY: unknown names {', '.join(sorted(unknown))}")
    options = {names[name]: value for name, value in given.items()}
    if (seconds := options.get("dedupes_for")) is not None:
        options["dedupes_for"] = timedelta(seconds=seconds)
    return options


class CallingGateway:
    """A gateway at ``url``. Thread-safe, and safe to create before a fork.

    ``timeout``: seconds for one attempt, from waiting for a connection to the answer's last byte.
    ``attempts``: how often a call may be sent, the first time included. The key and the bytes of
    the body are the same every time. ``dedupes``: False for a gateway that does not honour the
    key; an attempt that may have moved money is then never repeated. ``dedupes_for``: how long it
    remembers one. ``calls``: how many may be under way in this process; what is more is refused at
    once. ``redis_url``: where breakers and the retry budget are shared with other processes;
    without it each process has its own. ``hedging``: send a second copy of a call that takes long;
    None for never.

    Every call returns within ``longest_call`` seconds:
    ``attempts · timeout + (attempts - 1) · (RETRY_AFTER_LIMIT + BACKOFF_BASE)``, and never later
    than the deadline of the request that it is made for.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        attempts: int = 3,
        dedupes: bool = True,
        dedupes_for: timedelta | None = None,
        calls: int = 3,
        redis_url: str | None = None,
        hedging: HedgePolicy | None = None,
        budget: BudgetPolicy = BUDGET,
        breaker: BreakerPolicy | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"not an HTTP URL: {url!r}")
        if attempts < 1 or timeout <= 0:
            raise ValueError("attempts must be at least 1 and timeout above 0")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.attempts = attempts
        self.dedupes = dedupes
        self.dedupes_for = dedupes_for
        self.room = Room(calls)
        #: One pool for all that is said to this gateway.
        self._connections = Httpx2Transport(max_answer=MAX_ANSWER, verify=_trust())
        # Another gateway's failures are none of this one's.
        self.name = f"gateway:{urlsplit(url).netloc.rpartition('@')[2]}"
        # Not the port: a gateway that is started anew elsewhere on its machine keeps its books.
        self.books = urlsplit(url).hostname or ""
        link = None if redis_url is None else _link(redis_url)
        # A probe's permit has to outlive the probe.
        self._breakers = _breakers(link, breaker or BreakerPolicy(lease=max(10.0, 2 * timeout)))
        options: Options = {
            "policy": self._policy(),
            "breakers": self._breakers,
            "budget": SharedBudget(link, self.name, budget) if link else RetryBudget(budget),
            "hedging": hedging,
            "observers": [LoggingObserver(logger), _metrics()],
            "classify": decide,
        }
        self._options = options
        self._waiting = {} if pause is None else {"sleep": pause}
        self._caller: Caller[Reading] = Caller(
            self._transport(), self.name, **self._waiting, **options
        )

    @property
    def longest_call(self) -> float:
        """Seconds after which any call has returned; looking up the host's name, and asking Redis,
        aside."""
        longest_pause = RETRY_AFTER_LIMIT + BACKOFF_BASE  # above any back-off
        return self.attempts * self.timeout + (self.attempts - 1) * longest_pause

    def obstacle(self) -> BulkheadFull | None:
        """That every place is taken; None: one is free. The breaker is not asked: it is shared."""
        return self.room.refusal()

    @contextmanager
    def room_for(self, task: Task) -> Iterator[Reservation]:
        """Take a place for a call and see that the breaker would let it through. Raises
        ``BulkheadFull`` and ``BreakerOpen``."""
        with self.room.reserve() as reservation:
            # The call itself is admitted later, when it is made; this only looks. It asks Redis,
            # in a transaction, while that has not locked anything yet.
            breaker = self._breakers.get(self.name, task)
            breaker.settle(breaker.admit(), Health.NEUTRAL)
            yield reservation

    def close(self) -> None:
        """Close this process's connections; a later call opens new ones."""
        self._caller.close()

    def _in_room(self, reference: str, call: Callable[[], Outcome]) -> Outcome:
        """Make a call in the place that was kept for it, or in another."""
        try:
            with self.room.hold(reference):
                return call()
        except BulkheadFull as full:
            return NotSent("too many calls of the gateway are under way", full.retry_after)

    def _enquirer(self) -> Caller[Any]:
        """Asks, and moves nothing, so the status of an answer is all that the loop has to know. Its
        retries are its own: the questions of a job must not use up those of charges."""
        asking: Options = {**self._options, "classify": classify, "hedging": None}
        asking["budget"] = RetryBudget(BUDGET)
        return Caller(self._connections, self.name, **self._waiting, **asking)

    def _transport(self) -> Transport[Reading]:
        return ReadingTransport(self._connections, timeout=self.timeout)

    def _policy(self) -> CallPolicy:
        return CallPolicy(
            attempts=self.attempts,
            backoff=FullJitter(base=BACKOFF_BASE, cap=BACKOFF_CAP),
            attempt_timeout=self.timeout,
            # The attempts and their waits end before it: it cuts none of them short.
            deadline=self.longest_call + 1,
            spread=BACKOFF_BASE,
            make_keys=False,
            server_dedupes=self.dedupes,
        )


def unsent(result: CallResult[Reading]) -> Outcome:
    """How a call ended in which there was no attempt."""
    error = result.error
    if isinstance(error, BreakerOpen):
        return NotSent("the gateway fails, and is not asked for a while", error.retry_after)
    if isinstance(error, DeadlineExceeded):
        # Nobody waits any more, and the money is still wanted: the job makes the call.
        return Unknown("no time was left for the call")
    raise RuntimeError("a call ended without an attempt") from error


def _breakers(
    link: RedisLink | None, policy: BreakerPolicy
) -> BreakerRegistry[CircuitBreaker | SharedBreaker]:
    def make(dependency: str, operation: str) -> CircuitBreaker | SharedBreaker:
        show = _metrics().breaker_listener(dependency, operation)
        if link is None:
            return CircuitBreaker(policy, name=f"{dependency} {operation}", on_change=show)
        return SharedBreaker(link, dependency, operation, policy, on_change=show)

    return BreakerRegistry(make)


@cache
def _metrics() -> PrometheusObserver:
    """One for all gateways: they share Prometheus's registry."""
    return PrometheusObserver()


@cache
def _trust() -> ssl.SSLContext:
    """Whose certificates are believed: read once, as that takes 25 ms."""
    return httpx2.create_ssl_context()


@cache
def _link(url: str) -> RedisLink:
    return RedisLink.connect(url)
