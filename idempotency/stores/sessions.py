"""The database session a store writes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections, router, transaction

from idempotency.models import IdempotencyKey

View = TypeVar("View", bound=Callable[..., Any])


def keys_database() -> str:
    """The alias that keys, and therefore the work, are written to."""
    return router.db_for_write(IdempotencyKey)


def non_atomic(view: View) -> View:
    """Exempt a view from ATOMIC_REQUESTS on the default database, and on that of the keys where it
    is another one: what has to commit in more than one step, or waits for the network, cannot be in
    a transaction of the request."""
    exempt: Callable[[View], View] = transaction.non_atomic_requests(using=keys_database())
    return exempt(transaction.non_atomic_requests(view))


def replace_if_broken(using: str) -> None:
    """After an error: drop a session that is gone, so that the next statement gets a new one.

    Costs nothing when no error occurred. Does nothing inside a transaction, which would be lost.
    """
    connection = connections[using]
    if connection.errors_occurred and not connection.in_atomic_block and not connection.is_usable():
        connection.close()
