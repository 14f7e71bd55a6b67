"""The client half: retries that cannot hurt. Needs no Django, and imports none.

A call passes these layers, outermost first::

    deadline → attempt loop (budget) → breaker → hedge → attempt timeout → transport

The breaker sees every attempt; the budget is credited by first attempts that passed the breaker.
Each piece is usable alone, takes its clock and its random source as arguments, and is safe for
threads where it has state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from idempotency.client.backoff import (
    Backoff,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fixed,
    FullJitter,
    Immediate,
)
from idempotency.client.breaker import (
    Admission,
    BreakerOpen,
    BreakerPolicy,
    BreakerProtocol,
    BreakerRegistry,
    CircuitBreaker,
    Outcome,
    State,
)
from idempotency.client.budget import BudgetPolicy, BudgetProtocol, RetryBudget, Ticket
from idempotency.client.bulkhead import Bulkhead, BulkheadFull
from idempotency.client.classification import (
    Answer,
    Decision,
    Problem,
    Trouble,
    Verdict,
    classify,
)
from idempotency.client.deadline import Deadline, DeadlineExceeded
from idempotency.client.hedging import HedgePolicy, Hedging

if TYPE_CHECKING:
    from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget

__all__ = [
    "Admission",
    "Answer",
    "Backoff",
    "BreakerOpen",
    "BreakerPolicy",
    "BreakerProtocol",
    "BreakerRegistry",
    "BudgetPolicy",
    "BudgetProtocol",
    "Bulkhead",
    "BulkheadFull",
    "CircuitBreaker",
    "Deadline",
    "DeadlineExceeded",
    "Decision",
    "DecorrelatedJitter",
    "EqualJitter",
    "Exponential",
    "Fixed",
    "FullJitter",
    "HedgePolicy",
    "Hedging",
    "Immediate",
    "Outcome",
    "Problem",
    "RedisLink",
    "RetryBudget",
    "SharedBreaker",
    "SharedBudget",
    "State",
    "Ticket",
    "Trouble",
    "Verdict",
    "classify",
]

#: Names whose module needs an extra (``redis``, ``client``): imported when first asked for.
_ON_DEMAND = {
    "RedisLink": "idempotency.client.shared",
    "SharedBreaker": "idempotency.client.shared",
    "SharedBudget": "idempotency.client.shared",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
