"""The channels of this process: how messages of each kind are delivered, and within what bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured

from idempotency.client.backoff import Backoff, EqualJitter
from idempotency.client.breaker import BreakerPolicy
from idempotency.conf import duration
from idempotency.outbox.messages import Ending, Message

Deliver = Callable[[Message], Ending]

#: Seconds, doubled for every attempt up to the cap. With 25 attempts about ten hours.
BACKOFF = EqualJitter(base=1.0, cap=3600.0)
#: A destination is tried seldom, so a handful of failures has to do. The lease of a probe is the
#: channel's, see ``Channel.breaker_policy``.
BREAKER = BreakerPolicy(window=60, minimum_calls=5, permits=1, slow_call=60.0)


class UnknownChannel(LookupError):
    """No channel of that name is registered in this process."""


@dataclass(frozen=True, slots=True)
class Channel:
    """How messages of one name are delivered. See ``channel``."""

    name: str
    deliver: Deliver
    attempts: int
    max_age: timedelta
    lease: timedelta
    at_once: int
    backoff: Backoff
    breaker: BreakerPolicy


_registry: dict[str, Channel] = {}


def channel(
    name: str,
    *,
    attempts: int = 25,
    max_age: float | timedelta = timedelta(days=3),
    lease: float | timedelta = 60,
    at_once: int = 4,
    backoff: Backoff = BACKOFF,
    breaker: BreakerPolicy = BREAKER,
) -> Callable[[Deliver], Deliver]:
    """Register a function as the one that delivers a channel's messages.

    It runs in a thread of the dispatcher's, outside any transaction, and says how the delivery
    ended; what it raises counts as ``Retry``. It has to be bounded in time: a send that takes
    longer than ``lease`` (seconds or a timedelta) is taken for dead, and made again elsewhere.

    A message is given up, DEAD, after ``attempts`` sends or when it is older than ``max_age``,
    whichever comes first. One destination gets ``at_once`` messages at the same time from a
    dispatcher. ``backoff`` and ``breaker`` (one for each destination) are ``idempotency.client``'s.

    The name is stored with each message: renaming a channel strands those that are unfinished.
    """
    made = _checked(name, attempts, max_age, lease, at_once)

    def register(deliver: Deliver) -> Deliver:
        known = _registry.get(name)
        if known is not None and not _same(known.deliver, deliver):
            raise ImproperlyConfigured(
                f"Two channels are named {name!r}: {known.deliver} and {deliver}."
            )
        _registry[name] = Channel(name, deliver, *made, backoff, breaker)
        return deliver

    return register


def find(name: str) -> Channel:
    """The channel of that name. Raises ``UnknownChannel``."""
    try:
        return _registry[name]
    except KeyError:
        known = ", ".join(sorted(_registry)) or "none"
        raise UnknownChannel(
            f"No outbox channel is named {name!r} (known: {known}). Register it with "
            "@outbox.channel in a module `outbox` of an installed app."
        ) from None


def all_channels() -> list[Channel]:
    """Every channel that this process can deliver."""
    return list(_registry.values())


def _checked(
    name: str, attempts: int, max_age: float | timedelta, lease: float | timedelta, at_once: int
) -> tuple[int, timedelta, timedelta, int]:
    if not 1 <= len(name) <= 64:
        raise ImproperlyConfigured(
            f"The name of an outbox channel has 1 to 64 characters: {name!r}."
        )
    oldest, held = duration(max_age, f"{name}: max_age"), duration(lease, f"{name}: lease")
    if attempts < 1 or at_once < 1 or min(oldest, held) <= timedelta(0):
        raise ImproperlyConfigured(
            f"Channel {name!r}: attempts and at_once are at least 1, max_age and lease above zero."
        )
    return attempts, oldest, held, at_once


def _same(one: Deliver, other: Deliver) -> bool:
    """Whether it is one function, perhaps of a module that was imported twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
