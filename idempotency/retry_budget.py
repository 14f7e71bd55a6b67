"""The service's own retry budget: a storm of retries gets a share of it, and no more.

Over the last ``RETRY_BUDGET_WINDOW`` seconds, as ``client/budget.py`` counts them::

    retries ≤ max(RETRY_BUDGET_FLOOR, RETRY_BUDGET_RATIO · first attempts)

A client's budget bounds what one client adds; a thousand clients that each behave, or one that does
not, still reach the service together. With ``REDIS_URL`` all processes share one budget. Without,
and while Redis is away, each has its own: the floor is then per process, so that four workers grant
four floors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from idempotency.client.budget import BudgetPolicy, BudgetProtocol, RetryBudget, Ticket
from idempotency.conf import Settings, settings

Clock = Callable[[], float]


class ServiceBudget:
    """A budget, and the memory of having been empty. Safe for threads."""

    def __init__(self, budget: BudgetProtocol, *, memory: float, clock: Clock) -> None:
        """``memory``: for how many seconds after a refusal the budget counts as scarce."""
        self._budget = budget
        self._memory = memory
        self._clock = clock
        self._scarce_until = clock()

    @property
    def scarce(self) -> bool:
        """Whether it refused somebody lately: it is then worth a statement to look at a key before
        claiming it, because a claim that is refused afterwards has to be written twice."""
        return self._clock() < self._scarce_until

    def credit(self) -> None:
        """Count a first attempt that runs. One that is turned away earns nothing."""
        self._budget.credit()

    def spend(self) -> Ticket | None:
        """Ask for one retry. None: there is none left."""
        ticket = self._budget.spend()
        if ticket is None:
            self._scarce_until = self._clock() + self._memory
        return ticket

    def refund(self, ticket: Ticket) -> None:
        """Give back a retry that ran nothing."""
        self._budget.refund(ticket)


_budgets: dict[tuple[object, ...], ServiceBudget] = {}
_lock = threading.Lock()


def get_budget(name: str) -> ServiceBudget:
    """The budget of that name in this process, as the settings say now."""
    chosen = settings()
    policy = BudgetPolicy(
        ratio=chosen.retry_budget_ratio,
        window=chosen.retry_budget_window,
        floor=chosen.retry_budget_floor,
    )
    made_of = (name, policy, chosen.redis_url, chosen.redis_timeout)
    with _lock:
        if made_of not in _budgets:
            _budgets[made_of] = _make(name, policy, chosen)
        return _budgets[made_of]


def _make(name: str, policy: BudgetPolicy, chosen: Settings) -> ServiceBudget:
    budget: BudgetProtocol = RetryBudget(policy)
    if chosen.redis_url is not None:
        # The ``redis`` extra is only needed where there is a URL.
        from idempotency.client.shared import RedisLink, SharedBudget

        timeout = chosen.redis_timeout.total_seconds()
        link = RedisLink.connect(chosen.redis_url, timeout=timeout)
        budget = SharedBudget(link, f"service:{name}", policy)
    return ServiceBudget(budget, memory=policy.window, clock=time.monotonic)
