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


class Commit:
    """Tells a COMMIT that failed from a hook that failed after it.

    Make it before the outermost block, and call ``watch`` first of all inside.
    """

    def __init__(self, using: str) -> None:
        self.happened = False
        self._using = using
        #: Whether the outermost block is ours. A TestCase commits nothing, and would count our hook
        #: among its own.
        self.ours = not connections[using].in_atomic_block

    def watch(self) -> None:
        """Be the first hook of the transaction."""
        if self.ours:
            transaction.on_commit(self._note, using=self._using)

    def _note(self) -> None:
        self.happened = True


def replace_if_broken(using: str) -> None:
    """After an error: drop a session that is gone, so that the next statement gets a new one.

    Costs nothing when no error occurred. Does nothing inside a transaction, which would be lost.
    """
    connection = connections[using]
    if connection.errors_occurred and not connection.in_atomic_block and not connection.is_usable():
        connection.close()


def demand_unmarked(using: str) -> None:
    """Raise when the transaction is marked for rollback, though its work says that it is done: a
    database error was swallowed outside a block of its own, or the work marked it itself."""
    connection = connections[using]
    if connection.needs_rollback:
        raise transaction.TransactionManagementError(
            "The work returned as if it were done, but its transaction is marked for rollback, so "
            "nothing is kept. Catch database errors around an inner transaction.atomic()."
        ) from connection.rollback_exc  # type: ignore[attr-defined]  # unknown to the stubs
