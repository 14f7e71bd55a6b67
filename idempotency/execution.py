"""What a handler gets to know of its attempt, as ``request.idempotency``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import connections

from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.keys import derive_downstream_key, nameless
from idempotency.core.policies import Policy
from idempotency.stores.base import Store


class Execution:
    """One attempt at a keyed request. A handler reads it; ``renew`` is all it can do."""

    def __init__(self, store: Store, lease: Lease, policy: Policy) -> None:
        self._store = store
        self._lease = lease
        self._policy = policy
        #: A downstream key was asked for, so a call may have gone out under it.
        self.may_have_called = False

    @property
    def key(self) -> str:
        """The client's key."""
        return self._lease.scope.key

    @property
    def key_id(self) -> int:
        """The number of the key's record, to be kept with what the work writes. A key that is used
        again after it expired has another one."""
        return self._lease.key_id

    @property
    def attempt(self) -> int:
        """1 for the first run under the key, one more for each later one."""
        return self._lease.attempt

    def downstream_key(self, step: str, service: str = "") -> str:
        """A key for a call of ours: the same on every attempt, another one for each service and
        step.

        The claim of work that asked for one is never released, only failed: a released key would
        be another one on the retry. Before a call whose repetition matters, use an Operation: an
        atomic claim may be lost when the database crashes within a second of it.
        """
        self.may_have_called = True
        return derive_downstream_key(
            settings().secret_bytes,
            self._lease.key_id,
            service,
            nameless(self._lease.scope.route),
            step,
        )

    def renew(self, duration: timedelta | None = None) -> None:
        """Let the lease run its full length, or ``duration``, from now. Raises LeaseLost when it is
        gone.

        Written on a connection of its own: inside the work's transaction nobody would see it before
        the commit. SQLite has one writer, which the work is, so there the transaction itself keeps
        others away. At REPEATABLE READ and above the later completion would conflict with it: do
        not renew there.
        """
        duration = duration or self._policy.lease
        connection = connections[self._store.using]
        if connection.in_atomic_block and connection.vendor != "sqlite":
            with ThreadPoolExecutor(max_workers=1) as thread:
                thread.submit(self._renew_and_close, duration).result()
        else:
            self._store.renew(self._lease, duration)

    def _renew_and_close(self, duration: timedelta) -> None:
        try:
            self._store.renew(self._lease, duration)
        finally:
            connections[self._store.using].close()
