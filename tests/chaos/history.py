"""What was sent, answered and broken, in the order in which it was noted: one JSON line each.

In a file and not in memory, so that a run which is killed can still be read.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class History:
    """Writes one. Safe for threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a", buffering=1)
        self._began = time.monotonic()

    def note(self, event: str, key: str = "", **about: Any) -> None:
        """Write down one event; those of one key are its story."""
        line = {"t": round(time.monotonic() - self._began, 4), "event": event, "key": key, **about}
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        with self._lock:
            self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every event. The last line may be cut short by a kill."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
