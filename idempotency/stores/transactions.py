"""The transaction of a piece of work, from its BEGIN to the hooks after its commit."""

from __future__ import annotations

import logging
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    from idempotency.stores.begin import BeginWithFirst

logger = logging.getLogger("idempotency")


class Transaction:
    """``transaction.atomic()`` that tells a COMMIT that failed from a hook that failed after it.

    The first comes through, as does all that is raised inside. The second is logged: the work
    stands, whatever a hook of its own says, and the caller hears it.
    """

    def __init__(self, using: str, of: str, *, durable: bool = True) -> None:
        self.connection = connections[using]
        #: A TestCase commits nothing, and would count our hook among its own.
        self.outermost = not self.connection.in_atomic_block
        self._atomic = transaction.atomic(using=using, durable=durable)
        self._of = of
        self._committed = False
        self._begin: BeginWithFirst | None = None

    def __enter__(self) -> Transaction:
        self._atomic.__enter__()
        if self.outermost:
            # Before anything else runs, so that it is the first of the hooks.
            self.connection.on_commit(self._note)
            begin = _begin_of(self.connection.vendor)
            self._begin = None if begin is None else begin(self.connection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._begin is not None:
            self._begin.withdraw()
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
def _begin_of(vendor: str) -> type[BeginWithFirst] | None:
    """How a transaction begins on a database; None: as Django and its driver do it."""
    if vendor != "postgresql":
        return None
    try:
        from idempotency.stores.begin import BeginWithFirst
    except ImportError:  # psycopg 2, under the portable store
        return None
    return BeginWithFirst
