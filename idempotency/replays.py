"""When a key was replayed, as far as Redis (or Valkey) knows: for the key's page.

A replay writes nothing to the database. It is noted in this process, and at most once in ``EVERY``
seconds a replay tells Redis what was noted. So what Redis knows of the last one is late by less
than ``EVERY``, and the number may lack those that came after. Without ``REDIS_URL`` nothing is
noted; what is noted goes with Redis.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from idempotency import signals
from idempotency.conf import settings

if TYPE_CHECKING:
    from idempotency.client.shared import RedisLink

#: Seconds between two words of a process to Redis.
EVERY = 1.0
#: Keys noted at once; a storm over more of them speaks sooner.
MOST = 500

#: In braces, so that a cluster keeps all of them where the script runs.
_NAME = "{idempotency:replays}"
#: A hash for each key, that expires with its answer. Redis's own clock decides when it was.
_TELL = """
local now = redis.call('TIME')[1]
for index = 2, #ARGV, 2 do
  local name = KEYS[1] .. ':' .. ARGV[index]
  redis.call('HSETNX', name, 'first', now)
  redis.call('HINCRBY', name, 'number', ARGV[index + 1])
  redis.call('HSET', name, 'last', now)
  redis.call('EXPIRE', name, ARGV[1])
end
return 1
"""
_READ = """
local found = redis.call('HMGET', KEYS[1] .. ':' .. ARGV[1], 'first', 'last', 'number')
return found[1] and found or {}
"""


@dataclass(frozen=True, slots=True)
class Replays:
    """How often a stored answer was sent again, and when, to the second."""

    first: datetime
    last: datetime
    number: int


class Notes:
    """What this process has replayed and not told yet. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: Counter[bytes] = Counter()
        self._told = 0.0

    def add(self, digest: bytes) -> Counter[bytes] | None:
        """Note one; what is to be told now, if it is time."""
        with self._lock:
            self._noted[digest] += 1
            now = time.monotonic()
            if now - self._told < EVERY and len(self._noted) < MOST:
                return None
            noted, self._noted, self._told = self._noted, Counter(), now
            return noted


_notes = Notes()


def note(digest: bytes, **_: Any) -> None:
    """Note a replay of the key with this digest."""
    link = _link_of_settings()
    noted = None if link is None else _notes.add(digest)
    if link is not None and noted:
        pairs = [part for key, number in noted.items() for part in (key.hex(), number)]
        link.run(_TELL, _NAME, int(settings().ttl.total_seconds()) or 1, *pairs)


def read(digest: bytes) -> Replays | None:
    """What is known of a key. None: nothing; ``noted()`` says whether anything is noted at all."""
    link = _link_of_settings()
    found = None if link is None else link.run(_READ, _NAME, digest.hex())
    if not found:
        return None
    first, last, number = (int(value) for value in found)
    return Replays(_moment(first), _moment(last), number)


def noted() -> bool:
    """Whether replays are noted, and Redis answered the last time it was asked."""
    link = _link_of_settings()
    return link is not None and link.connected


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _link_of_settings() -> RedisLink | None:
    chosen = settings()
    if chosen.redis_url is None:
        return None
    return _link(chosen.redis_url, chosen.redis_timeout.total_seconds())


@cache
def _link(url: str, timeout: float) -> RedisLink:
    # The ``redis`` extra is only needed where there is a URL.
    from idempotency.client.shared import RedisLink

    return RedisLink.connect(url, timeout=timeout)


signals.key_replayed.connect(note, dispatch_uid="idempotency.replays")
