"""A circuit breaker for each destination: one that fails is left alone, and costs its queue and
nobody else anything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from idempotency.client.breaker import BreakerPolicy, BreakerProtocol, CircuitBreaker
from idempotency.conf import settings
from idempotency.outbox.channels import Channel

if TYPE_CHECKING:
    from idempotency.client.shared import RedisLink

#: Breakers that a process remembers. Destinations are data, and there may be any number of them.
REMEMBERED = 10_000
#: Seconds that ``BreakerPolicy`` allows.
LONGEST_LEASE = 3600.0


def breaker_of(channel: Channel, destination: str) -> BreakerProtocol:
    """The breaker of a destination, shared with all processes where there is a ``REDIS_URL``."""
    # A probe's permit has to outlive the probe. Breakers know none of more than an hour.
    lease = min(channel.lease.total_seconds(), LONGEST_LEASE)
    policy = replace(channel.breaker, lease=lease)
    chosen = settings()
    timeout = chosen.redis_timeout.total_seconds()
    return _breaker(channel.name, destination, policy, chosen.redis_url, timeout)


@lru_cache(maxsize=REMEMBERED)
def _breaker(
    channel: str, destination: str, policy: BreakerPolicy, redis_url: str | None, timeout: float
) -> BreakerProtocol:
    name = f"outbox:{channel}:{destination}"
    if redis_url is None:
        return CircuitBreaker(policy, name=name)
    # The ``redis`` extra is only needed where there is a URL.
    from idempotency.client.shared import SharedBreaker

    return SharedBreaker(_link(redis_url, timeout), name, "deliver", policy)


@cache
def _link(url: str, timeout: float) -> RedisLink:
    from idempotency.client.shared import RedisLink

    return RedisLink.connect(url, timeout=timeout)
