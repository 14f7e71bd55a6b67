"""At most N calls at once, so that one slow dependency cannot take every thread.

There is no queue: a call that finds no room is refused at once, while its caller still has time to
do something else. Source: Nygard, "Release It!", Bulkheads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from idempotency.core.errors import CallNotSent

__all__ = ["Bulkhead", "BulkheadFull"]


class BulkheadFull(CallNotSent):
    """As many calls as allowed are under way. This attempt sent nothing."""

    default_detail = "Too many calls to this service are under way. This attempt sent nothing."


class Bulkhead:
    """Room for ``limit`` calls at once in this process. Safe for threads and for tasks.

    ``retry_after``: seconds that a refused caller is told to wait, about the time of one call.
    """

    def __init__(self, limit: int, *, retry_after: float = 1.0) -> None:
        if limit < 1:
            raise ValueError("a bulkhead has room for at least one call")
        self.limit = limit
        self.retry_after = retry_after
        self._in_use = 0
        self._lock = threading.Lock()

    @property
    def in_use(self) -> int:
        """Calls under way, for a gauge."""
        return self._in_use

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold room for one call. Raises ``BulkheadFull`` at once where there is none."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def refusal(self) -> BulkheadFull | None:
        """What ``enter`` would raise now; None: it would let the call in."""
        return BulkheadFull(retry_after=self.retry_after) if self._in_use >= self.limit else None

    def enter(self) -> None:
        """Take room for one call; ``leave`` gives it back. Raises ``BulkheadFull``."""
        with self._lock:
            if (full := self.refusal()) is not None:
                raise full
            self._in_use += 1

    def leave(self) -> None:
        """Give the room back. Raises ``RuntimeError`` for more returns than entries."""
        with self._lock:
            if self._in_use == 0:
                raise RuntimeError("left a bulkhead that nobody was in")
            self._in_use -= 1
