"""Whether a request may go on: is there time left for it, may it be one more retry, and could its
work begin at all.

A retry is what says so (``X-Retry-Attempt: 2``), and any run of a key that ran before: FAILED, or
its lease over. A client that never sends the marker is therefore bounded as well. Where each is
noticed::

    throttle   the marker is read, and the retry spends; nothing left → only stored answers pass
    before the claim   while the budget is scarce, one look at the key: what would run again spends
    after the claim    the attempt is known for certain: a first one is credited, another spends

Only the last costs the fresh path anything, and no statement: in quiet times a re-execution without
the marker is noticed by the claim that it makes anyway. When the budget then refuses it, the claim
is given back before the work: failed again, or suspended at its recovery point. That write is rare,
since the refusal makes the budget scarce, and the next such request is turned away by the look.

What executes nothing is never refused: a replay, and the news that a key is in doubt. A replay
gives its ticket back, and so does what an obstacle turns away.

An *obstacle* is what the view knows against its work without asking anybody: every place for a call
of the gateway is taken, say. The work itself would find it too, but after a claim that then has to
be given back; the look costs one read. It turns away new keys only, and is true only for now: what
the work needs it still has to take.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, OperationalError

from idempotency.client.budget import Ticket
from idempotency.client.deadline import Deadline
from idempotency.core.decisions import Lease, Standing
from idempotency.core.errors import (
    BudgetExhausted,
    CallNotSent,
    DeadlinePassed,
    LeaseLost,
    StoreUnavailable,
)
from idempotency.core.keys import Scope, log_digest
from idempotency.retry_budget import ServiceBudget
from idempotency.stores.base import Store

logger = logging.getLogger("idempotency")

_REASON = "the retry budget was exhausted"


def no_obstacle() -> None:
    """Nothing is known against the work."""


class Admission:
    """One request's time, its place in the retry budget, and what is in its way. Without any it is
    always let on."""

    def __init__(
        self,
        deadline: Deadline | None = None,
        obstacle: Callable[[], CallNotSent | None] = no_obstacle,
    ) -> None:
        self.deadline = deadline
        self._obstacle = obstacle
        self._budget: ServiceBudget | None = None
        self._marked = False
        self._ticket: Ticket | None = None
        self._looked = False

    @property
    def time_left(self) -> float:
        """Seconds; infinite without a deadline."""
        return math.inf if self.deadline is None else self.deadline.remaining()

    def demand_time(self) -> None:
        """Raise DeadlinePassed when nobody waits for the answer any more."""
        if self.time_left <= 0:
            raise DeadlinePassed

    def enter(self, budget: ServiceBudget, *, marked: bool) -> bool:
        """Put the request under a budget. ``marked``: it says itself that it is a retry, and pays
        at once.

        False: it could not, so only a stored answer may be served.
        """
        self._budget, self._marked = budget, marked
        return not marked or self._pay()

    def look(self, store: Store, scope: Scope) -> None:
        """Turn away before the claim what would only give its claim back. At most one statement a
        request, and none while the budget is not scarce and nothing is in the way. Raises
        BudgetExhausted, DeadlinePassed, or the obstacle."""
        if self._looked:
            return
        obstacle, in_question = self._obstacle(), self._in_question()
        if obstacle is None and not in_question:
            return
        self.demand_time()
        self._looked = True
        try:
            standing = store.standing(scope.digest)
        except (OperationalError, InterfaceError) as error:
            raise StoreUnavailable from error
        if standing is Standing.ANSWERED:
            return
        if obstacle is not None and standing is Standing.NEW:
            # "Nothing happened", which nobody knows of a key that ran before.
            self.refund()
            raise obstacle
        repeated = self._marked or standing is Standing.REPEATABLE
        if in_question and repeated and not self._pay():
            raise BudgetExhausted

    def _in_question(self) -> bool:
        """Whether a look could show that the request has to pay, and cannot."""
        if self._budget is None or self._ticket is not None:
            return False
        return self._marked or self._budget.scarce

    def admit(self, attempt: int) -> None:
        """Count a request that is about to run, as the attempt that it turned out to be. Raises
        BudgetExhausted."""
        if self._budget is None:
            return
        if self._marked or attempt > 1:
            if not self._pay():
                raise BudgetExhausted
        else:
            self.refund()
            self._budget.credit()

    def admit_claimed(self, store: Store, lease: Lease, ttl: timedelta) -> None:
        """The same after a claim, which is given back when the budget refuses it."""
        try:
            self.admit(lease.attempt)
        except BudgetExhausted:
            _give_back(store, lease, ttl)
            raise

    def refund(self) -> None:
        """It ran nothing after all: it is a replay, or was turned away by what is in its way."""
        if self._budget is not None and self._ticket is not None:
            self._budget.refund(self._ticket)
            self._ticket = None

    def _pay(self) -> bool:
        if self._ticket is None and self._budget is not None:
            self._ticket = self._budget.spend()
        return self._ticket is not None


def _give_back(store: Store, lease: Lease, ttl: timedelta) -> None:
    """Leave the key to whoever comes next. An operation goes on from its recovery point, by the job
    if no client comes."""
    try:
        if lease.recovery_point:
            store.suspend(lease, _REASON)
        elif lease.attempt > 1:
            store.fail(lease, _REASON, ttl)
        else:
            store.release(lease)
    except (DatabaseError, InterfaceError, LeaseLost):
        # Nothing was run; at worst the key stays claimed until its lease runs out.
        digest = log_digest(lease.digest)
        logger.warning("could not give back the claim of %s", digest, exc_info=True)
