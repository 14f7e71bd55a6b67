"""The durable store: what was asked under each key, and what became of it.

One process, one connection, one transaction at a time. Every commit reaches the disk before its
answer leaves (``synchronous=FULL``), so SIGKILL and power loss lose nothing that was answered.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from payments.gateways.simulator.errors import AnswerLost

VERSION = 1
_SCHEMA = """
CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('charge', 'refund')),
    status TEXT NOT NULL CHECK (status IN ('succeeded', 'declined')),
    amount INTEGER NOT NULL CHECK (amount > 0),
    currency TEXT NOT NULL,
    charge TEXT REFERENCES entries (id),
    idempotency_key TEXT,
    reference TEXT,
    created TEXT NOT NULL
);
CREATE INDEX entries_key ON entries (idempotency_key);
CREATE INDEX entries_charge ON entries (charge);
CREATE TABLE requests (
    key TEXT PRIMARY KEY,
    parameters TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    entry TEXT REFERENCES entries (id)
);
"""
_COLUMNS = "id, kind, status, amount, currency, charge, idempotency_key, reference, created"


class LedgerError(Exception):
    """The data file cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Entry:
    id: str
    kind: str
    status: str
    amount: int
    currency: str
    charge: str | None
    idempotency_key: str | None
    reference: str | None
    created: str

    def as_dict(self) -> dict[str, Any]:
        shown = dict(vars(self))
        if self.kind == "charge":
            del shown["charge"]
        return shown


@dataclass(frozen=True)
class Request:
    """What is known of a key: its first parameters, its count of requests, its outcome."""

    parameters: str
    attempts: int
    entry: str | None


class Books:
    """The statements, valid inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def count_request(self, key: str, parameters: str) -> Request:
        """Count one more request under the key; the first one binds its parameters."""
        row = self._connection.execute(
            "INSERT INTO requests (key, parameters, attempts) VALUES (?, ?, 1)"
            " ON CONFLICT (key) DO UPDATE SET attempts = attempts + 1"
            " RETURNING parameters, attempts, entry",
            (key, parameters),
        ).fetchone()
        return Request(*row)

    def add(self, *, key: str | None, **values: Any) -> Entry:
        """Write one entry, and make it the outcome of its key unless the key has one."""
        entry = Entry(
            id=f"g{values['kind'][:2]}_{secrets.token_hex(12)}",
            idempotency_key=key,
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            **values,
        )
        self._connection.execute(
            f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
            tuple(vars(entry).values()),
        )
        self._connection.execute(
            "UPDATE requests SET entry = ? WHERE key = ? AND entry IS NULL", (entry.id, key)
        )
        return entry

    def get(self, entry_id: str) -> Entry | None:
        rows = self._select("id = ?", entry_id)
        return rows[0] if rows else None

    def find(self, kind: str, key: str | None, reference: str | None) -> list[Entry]:
        """The entries under the key, and those of the reference."""
        condition = "kind = ? AND (idempotency_key = ? OR reference = ?)"
        return self._select(condition, kind, key, reference)

    def moved(
        self, *, since: str = "", until: str = "~", after: str = "", limit: int = -1
    ) -> list[Entry]:
        """The entries that moved money, oldest first: ``limit`` of them, from ``since`` on, before
        ``until``, and behind the entry ``after``. ("~" is behind every time.)"""
        condition = (
            "status = 'succeeded' AND created >= ? AND created < ?"
            " AND sequence > COALESCE((SELECT sequence FROM entries WHERE id = ?), 0)"
        )
        return self._select(condition, since, until, after, limit=limit)

    def refunded(self, charge: str) -> int:
        row = self._connection.execute(
            "SELECT COALESCE(SUM(amount), 0) FROM entries WHERE charge = ?", (charge,)
        ).fetchone()
        return int(row[0])

    def answered(self, key: str) -> bool:
        sql = "SELECT 1 FROM requests WHERE key = ? AND entry IS NOT NULL"
        return self._connection.execute(sql, (key,)).fetchone() is not None

    def _select(self, condition: str, *values: str | None, limit: int = -1) -> list[Entry]:
        where = f"WHERE {condition} ORDER BY sequence LIMIT ?"
        sql = f"SELECT {_COLUMNS} FROM entries {where}"  # noqa: S608 - constants
        return [Entry(*row) for row in self._connection.execute(sql, (*values, limit))]


class Ledger:
    """Opens the data file, for this process alone."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = self._open(path)
        except sqlite3.Error as error:
            raise LedgerError(
                f"{path} cannot be used ({error}). Is another gateway running on it, or does its"
                " folder not exist?"
            ) from error

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        # isolation_level=None: transactions are ours to begin. timeout=0: another process that
        # holds the file holds it for its whole life (EXCLUSIVE), so waiting helps nobody.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;"
            )
        elif version != VERSION:
            connection.close()
            raise LedgerError(f"{path} was written by another version; move it away.")
        connection.execute("CREATE INDEX IF NOT EXISTS entries_reference ON entries (reference)")
        return connection

    @contextmanager
    def transaction(self) -> Iterator[Books]:
        """One transaction: committed to the disk at the end, rolled back by any exception."""
        with self._lock:
            connection = self._connection
            if connection is None:  # the process is ending; this request gets no answer
                raise AnswerLost
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Books(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def close(self) -> None:
        """Finish the transaction that is running, then refuse any other."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
