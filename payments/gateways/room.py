"""Room for calls of the gateway, taken before the work on a call begins.

Work is prepared in one step and calls in the next, so a place is reserved in the first and kept
under the name of what was prepared. A call that nobody reserved for (a job's) takes a place then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from idempotency.client import Bulkhead, BulkheadFull

#: Seconds after which a place that was kept is free again: its work was rolled back, or is late.
#: Between the two steps lies one COMMIT.
FORGOTTEN = 10.0


class Reservation:
    """One place. It is free again at the end of its block unless it was kept."""

    reference: str | None = None

    def keep_for(self, reference: str) -> None:
        """Leave the place to the call with that reference."""
        self.reference = reference


class Room:
    """At most ``calls`` at once in this process, those included that are about to begin. Safe for
    threads."""

    def __init__(self, calls: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bulkhead = Bulkhead(calls)
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, float] = {}

    @property
    def in_use(self) -> int:
        """Places taken, for a gauge."""
        return self._bulkhead.in_use

    def refusal(self) -> BulkheadFull | None:
        """What ``reserve`` would raise now; None: there is a place."""
        self._free_forgotten()
        return self._bulkhead.refusal()

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Take a place. Raises ``BulkheadFull`` at once where there is none."""
        self._free_forgotten()
        self._bulkhead.enter()
        reservation = Reservation()
        try:
            yield reservation
        except BaseException:
            self._bulkhead.leave()
            raise
        if reservation.reference is None:
            self._bulkhead.leave()
            return
        with self._lock:
            self._kept[reservation.reference] = self._clock() + FORGOTTEN

    @contextmanager
    def hold(self, reference: str) -> Iterator[None]:
        """Be in the room for one call: in the place that was kept for it, or in another. Raises
        ``BulkheadFull``."""
        self._free_forgotten()
        with self._lock:
            kept = self._kept.pop(reference, None)
        if kept is None:
            self._bulkhead.enter()
        try:
            yield
        finally:
            self._bulkhead.leave()

    def _free_forgotten(self) -> None:
        with self._lock:
            now = self._clock()
            for reference in [name for name, until in self._kept.items() if until <= now]:
                del self._kept[reference]
                self._bulkhead.leave()
