"""Hold a duplicate until the first request is done, without holding a database connection.

With Redis (or Valkey) the first request wakes its duplicates when it is done; without, or while
Redis is away, they look again at jittered intervals. Redis is never asked whether the key is free:
a wake-up only says "look now".
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from idempotency.conf import settings

if TYPE_CHECKING:
    import redis

logger = logging.getLogger("idempotency")

T = TypeVar("T")

#: Seconds between looks without Redis: doubling from the first to the last, each drawn from its
#: upper half. Of answers that fall between two of the last, one in twenty is found after 0.11 s or
#: more; the rest of 0.15 s is for the new connection that a look needs.
FIRST_LOOK, LAST_LOOK = 0.02, 0.14
#: Seconds between looks with Redis, in case a wake-up is lost.
SPARE_LOOK = 1.0
#: Seconds for which a Redis that failed is left alone.
LEAVE_ALONE = 5.0
#: Seconds for which "look again" can be read by a duplicate that subscribed a moment too late.
MARK_FOR = 5


class Watch(Protocol):
    """One duplicate that waits."""

    def wait(self, timeout: float) -> None:
        """Return when it is worth looking again, after ``timeout`` seconds at the latest."""


class PollingWatch:
    """Looks at jittered, growing intervals."""

    def __init__(self) -> None:
        self._interval = FIRST_LOOK

    def wait(self, timeout: float) -> None:
        drawn = self._interval * random.uniform(0.5, 1)  # noqa: S311  jitter, not a secret
        self._interval = min(LAST_LOOK, self._interval * 2)
        time.sleep(min(timeout, drawn))


class RedisWatch:
    """Woken by a message; falls back to looking now and then when the connection breaks."""

    def __init__(self, pubsub: Any, marked: bool, spare: PollingWatch) -> None:
        self._pubsub = pubsub
        self._marked = marked
        self._spare = spare
        self._broken = False

    def wait(self, timeout: float) -> None:
        if self._marked:
            # Only once: the mark outlives the moment it speaks of.
            self._marked = False
            return
        if not self._broken:
            import redis

            try:
                self._pubsub.get_message(timeout=min(timeout, SPARE_LOOK))
                return
            except (redis.RedisError, OSError):
                logger.warning("lost the wake-up channel; looking at intervals", exc_info=True)
                self._broken = True
        self._spare.wait(timeout)


class Waiter:
    """Wakes and is woken through Redis when there is one, and polls otherwise."""

    def __init__(self, client: redis.Redis | None) -> None:
        self._client = client
        self._left_alone_until = 0.0

    @contextmanager
    def watch(self, digest: bytes) -> Iterator[Watch]:
        """Watch a key. Subscribe first, then look for the mark, so that nothing falls between the
        two."""
        spare = PollingWatch()
        subscribed = self._subscribe(digest)
        if subscribed is None:
            yield spare
            return
        pubsub, marked = subscribed
        try:
            yield RedisWatch(pubsub, marked, spare)
        finally:
            pubsub.close()

    def announce(self, digest: bytes) -> None:
        """Wake the duplicates of a key, and leave a mark for those that subscribe too late."""
        client = self._reachable()
        if client is not None:
            self._tolerate(lambda: _announce(client, digest))

    def _subscribe(self, digest: bytes) -> tuple[Any, bool] | None:
        """The subscription, and whether the key was marked; None when there is no Redis."""
        client = self._reachable()
        if client is None:
            return None
        return self._tolerate(lambda: _subscribe(client, digest))

    def _reachable(self) -> redis.Redis | None:
        return None if time.monotonic() < self._left_alone_until else self._client

    def _tolerate(self, action: Callable[[], T]) -> T | None:
        """Redis only makes things faster: when it fails, say so and do without for a while."""
        import redis

        try:
            return action()
        except (redis.RedisError, OSError):
            logger.warning("Redis does not answer; not used for %s s", LEAVE_ALONE, exc_info=True)
            self._left_alone_until = time.monotonic() + LEAVE_ALONE
            return None


def _announce(client: redis.Redis, digest: bytes) -> None:
    pipe = client.pipeline(transaction=False)
    pipe.set(_mark(digest), b"1", ex=MARK_FOR)
    pipe.publish(_channel(digest), b"look")
    pipe.execute()


def _subscribe(client: redis.Redis, digest: bytes) -> tuple[Any, bool]:
    pubsub = client.pubsub()  # type: ignore[no-untyped-call]
    try:
        pubsub.subscribe(_channel(digest))
        # The confirmation: from here on no message is missed. Only then look for the mark.
        pubsub.get_message(timeout=settings().redis_timeout.total_seconds())
        return pubsub, bool(client.exists(_mark(digest)))
    except BaseException:
        pubsub.close()
        raise


def _channel(digest: bytes) -> str:
    return f"idempotency:wake:{digest.hex()}"


def _mark(digest: bytes) -> str:
    return f"idempotency:mark:{digest.hex()}"


_waiters: dict[str | None, Waiter] = {}
_lock = threading.Lock()


def get_waiter() -> Waiter:
    """The waiter of this process for the configured REDIS_URL; redis-py's pool notices a fork by
    itself."""
    url = settings().redis_url
    with _lock:
        if url not in _waiters:
            _waiters[url] = Waiter(None if url is None else _connect(url))
        return _waiters[url]


def _connect(url: str) -> redis.Redis:
    import redis

    timeout = settings().redis_timeout.total_seconds()
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=None,
    )
