"""What all processes ran in each minute of the last day, kept in Redis (or Valkey).

A request pays nothing for it: nothing is counted here. A thread of each process looks every few
seconds at what ``metrics.py`` has counted there, and adds the difference to the present minute, by
the server's clock. So this needs ``REDIS_URL`` and the extras ``redis`` and ``metrics``.

It is for people to look at. What Redis does not hear, because it is away or a process is killed, is
missing; what it hears late, by ``EVERY`` seconds at most, may be in the next minute.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from idempotency.conf import settings

if TYPE_CHECKING:
    from idempotency.client.shared import RedisLink

logger = logging.getLogger("idempotency")

#: Seconds between two looks of a process at its counters.
EVERY = 5.0
#: Minutes that are kept.
MINUTES = 24 * 60
#: Between an outcome and the upper bound, in seconds, of one of its durations.
UP_TO = "@"

_HASH = "idempotency:traffic"

#: Name → how often it was counted in this process: an outcome, or an outcome with a bound.
Counts = Counter[str]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The last day, in minutes that are over."""

    #: When the last minute of the series ended.
    until: datetime
    #: The first minute in which anything was counted.
    since: datetime | None
    #: Outcome → its number in each of ``MINUTES`` minutes, the oldest first.
    counts: dict[str, list[int]]
    #: Outcome → upper bound in seconds → how many requests took that long and longer than the bound
    #: before, in the last hour and in the whole day.
    hour: dict[str, dict[float, int]] = field(default_factory=dict)
    day: dict[str, dict[float, int]] = field(default_factory=dict)


def percentile(durations: dict[float, int], share: float) -> float | None:
    """The bound, in seconds, within which that share of the requests was answered.

    It is the upper end of a bucket, so the truth may be lower. Infinite above the last bound; None
    without any request.
    """
    wanted, seen = share * sum(durations.values()), 0
    for bound in sorted(durations):
        seen += durations[bound]
        if seen and seen >= wanted:
            return bound
    return None


def begin(read: Callable[[], Counts]) -> None:
    """See that the thread of this process runs. Called once for each thing that is counted, before
    it is counted for the first time. ``read`` says what was counted in this process so far."""
    global _recorder
    if settings().redis_url is None:
        return
    with _lock:
        if _recorder is None:
            _recorder = Recorder(read)
            threading.Thread(target=_recorder.run, name="idempotency-traffic", daemon=True).start()


class Recorder:
    """Adds up what one process counts."""

    def __init__(self, read: Callable[[], Counts]) -> None:
        self._read = read
        #: What a process was forked with is its parent's to tell.
        self._told = read()
        self._stop = threading.Event()

    def run(self) -> None:
        """Tell what is new, for ever."""
        while not self._stop.wait(EVERY):
            try:
                self.tell()
            except Exception:
                # Whatever it is, nobody waits for this thread, and the next look may be better.
                logger.exception("could not tell what was counted")

    def tell(self) -> None:
        """Add what was counted since the last time to the present minute."""
        counted = self._read()
        new = counted - self._told
        self._told = counted
        link = _link_of_settings()
        if new and link is not None:
            pairs = [part for pair in sorted(new.items()) for part in pair]
            link.run(_script(), _HASH, MINUTES, *pairs)


_recorder: Recorder | None = None
_lock = threading.Lock()


def _forked() -> None:
    """The thread stayed in the parent, which may have held the lock."""
    global _recorder, _lock
    _recorder, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def read() -> Traffic | None:
    """The last day. None without ``REDIS_URL``, and while Redis does not answer."""
    link = _link_of_settings()
    reply = None if link is None else link.run(_script(), _HASH, MINUTES)
    if reply is None:
        return None
    now, fields = int(reply[0]), reply[1:]
    minutes = dict(_minute(value.decode()) for value in fields[1::2])
    return _series(minutes, now)


def _minute(text: str) -> tuple[int, Counts]:
    minute, *pairs = text.split(" ")
    names = (pair.rpartition("=") for pair in pairs)
    return int(minute), Counter({name: int(number) for name, _, number in names})


def _series(minutes: dict[int, Counts], now: int) -> Traffic:
    """The minutes before the present one, which is not over."""
    first = now - MINUTES
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * MINUTES)
    hour: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    day: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    of_the_day = {minute: found for minute, found in minutes.items() if first <= minute < now}
    for minute, found in of_the_day.items():
        for name, number in found.items():
            outcome, timed, bound = name.partition(UP_TO)
            if not timed:
                counts[outcome][minute - first] += number
                continue
            day[outcome][float(bound)] += number
            if minute >= now - 60:
                hour[outcome][float(bound)] += number
    since = min(of_the_day, default=None)
    return Traffic(
        until=_moment(now),
        since=None if since is None else _moment(since),
        counts=dict(counts),
        hour={name: dict(found) for name, found in hour.items()},
        day={name: dict(found) for name, found in day.items()},
    )


def _moment(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


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


@cache
def _script() -> Any:
    return (resources.files("idempotency") / "traffic.lua").read_text()
