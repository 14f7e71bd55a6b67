"""Count the points of a path, and die at one of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from redis.connection import AbstractConnection

from idempotency.client.httpx2_transports import Httpx2Transport
from idempotency.stores.statements import StatementCursor

LABEL = 70


class Points:
    """The points that this process passes. It ends itself at the number ``at``, counted from 1, or
    at the first one whose label begins with ``label``."""

    def __init__(self, at: int = 0, label: str = "") -> None:
        self._at, self._label = at, label
        self._lock = threading.Lock()
        self.passed: list[str] = []

    def reach(self, label: str) -> None:
        with self._lock:
            self.passed.append(label)
            named = bool(self._label) and label.startswith(self._label)
            if len(self.passed) == self._at or named:
                os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand around what every statement and every call goes through.

        Lower than Django's ``execute_wrapper``: claims and completions use cursors of their own.
        """
        doors: list[tuple[Any, str, Callable[..., str]]] = [
            (psycopg.Cursor, "execute", _statement),
            (psycopg.Cursor, "executemany", _statement),
            (StatementCursor, "execute", _statement),
            (psycopg.Connection, "commit", lambda *_: "COMMIT"),
            (psycopg.Connection, "rollback", lambda *_: "ROLLBACK"),
            (Httpx2Transport, "send", _request),
            (AbstractConnection, "send_packed_command", _command),
        ]
        originals = [getattr(owner, name) for owner, name, _ in doors]
        for (owner, name, label), original in zip(doors, originals, strict=True):
            setattr(owner, name, self._around(original, label))
        try:
            yield
        finally:
            for (owner, name, _), original in zip(doors, originals, strict=True):
                setattr(owner, name, original)

    def _around(self, original: Callable[..., Any], label: Callable[..., str]) -> Any:
        def call(itself: Any, *arguments: Any, **options: Any) -> Any:
            text = label(itself, *arguments)
            self.reach(f"before {text}")
            try:
                return original(itself, *arguments, **options)
            finally:
                self.reach(f"after {text}")

        return call


def _statement(cursor: Any, query: Any, *_: Any) -> str:
    text = query.decode() if isinstance(query, bytes) else str(query)
    return " ".join(text.split())[:LABEL]


def _request(transport: Any, request: Any, *_: Any) -> str:
    return f"{request.method} {request.url.split('?')[0].split('//')[1].partition('/')[2]}"


def _command(connection: Any, command: Any, *_: Any) -> str:
    parts = command if isinstance(command, list) else [command]
    words = b"".join(bytes(part) for part in parts).split(b"\r\n")
    return f"Valkey {words[2].decode(errors='replace')}" if len(words) > 2 else "Valkey"
