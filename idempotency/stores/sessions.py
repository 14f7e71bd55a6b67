"""The database session a store writes with."""

from __future__ import annotations

from django.db import connections


def replace_if_broken(using: str) -> None:
    """After an error: drop a session that is gone, so that the next statement gets a new one.

    Costs nothing when no error occurred. Does nothing inside a transaction, which would be lost.
    """
    connection = connections[using]
    if connection.errors_occurred and not connection.in_atomic_block and not connection.is_usable():
        connection.close()
