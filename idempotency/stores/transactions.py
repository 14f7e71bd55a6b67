"""The transaction of a piece of work, from its BEGIN to the hooks after its commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from types import TracebackType

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

logger = logging.getLogger("idempotency")


class Transaction:
    """``transaction.atomic()`` that tells a COMMIT that failed from a hook that failed after it.

    The first comes through, as does all that is raised inside. The second is logged: the work
    stands, whatever a hook of its own says, and the caller hears it.
    """

    def __init__(self, connection: BaseDatabaseWrapper, of: str, *, durable: bool = True) -> None:
        self.connection = connection
        #: A TestCase commits nothing, and would count our hook among its own.
        self.outermost = not connection.in_atomic_block
        self._atomic = _block_of(connection.vendor)(connection, durable)
        self._of = of
        self._committed = False

    def __enter__(self) -> Transaction:
        self._atomic.__enter__()
        if self.outermost:
            # Before anything else runs, so that it is the first of the hooks.
            self.connection.on_commit(self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._atomic.__exit__(kind, error, trace)
        except Exception:
            if not self._committed:
                raise
            logger.exception("an on_commit hook of %s failed", self._of)

    def _note(self) -> None:
        self._committed = True


def demand_unmarked(connection: BaseDatabaseWrapper) -> None:
    """Raise when the transaction is marked for rollback, though its work says that it is done: a
    database error was swallowed outside a block of its own, or the work marked it itself."""
    if connection.needs_rollback:
        raise transaction.TransactionManagementError(
            "The work returned as if it were done, but its transaction is marked for rollback, so "
            "nothing is kept. Catch database errors around an inner transaction.atomic()."
        ) from connection.rollback_exc  # type: ignore[attr-defined]  # unknown to the stubs


@cache
def _block_of(vendor: str) -> Callable[[BaseDatabaseWrapper, bool], Atomic]:
    """How a block is made on a database."""
    if vendor != "postgresql":
        return _plain_block
    try:
        from idempotency.stores.blocks import WorkBlock
    except ImportError:  # psycopg 2, under the portable store
        return _plain_block
    return WorkBlock


def _plain_block(connection: BaseDatabaseWrapper, durable: bool) -> Atomic:
    return transaction.atomic(using=connection.alias, durable=durable)
