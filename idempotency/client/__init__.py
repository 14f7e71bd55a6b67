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
from idempotency.client.caller import AsyncCaller, Caller, InsideTransaction
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
from idempotency.client.history import Attempt, CallResult, Stop
from idempotency.client.messages import (
    BodyNotRepeatable,
    Request,
    Response,
    new_key,
    read_body,
)
from idempotency.client.observers import LoggingObserver, Observer, PrometheusObserver
from idempotency.client.policy import CallPolicy
from idempotency.client.transports import AsyncTransport, Cancellation, NoAnswer, Transport

if TYPE_CHECKING:
    from idempotency.client.httpx2_transports import AsyncHttpx2Transport, Httpx2Transport
    from idempotency.client.safe_client import AsyncSafeClient, SafeClient
    from idempotency.client.shared import RedisLink, SharedBreaker, SharedBudget
    from idempotency.client.total_time import AsyncDeadlineTransport, DeadlineTransport

__all__ = [
    "Admission",
    "Answer",
    "AsyncCaller",
    "AsyncDeadlineTransport",
    "AsyncHttpx2Transport",
    "AsyncSafeClient",
    "AsyncTransport",
    "Attempt",
    "Backoff",
    "BodyNotRepeatable",
    "BreakerOpen",
    "BreakerPolicy",
    "BreakerProtocol",
    "BreakerRegistry",
    "BudgetPolicy",
    "BudgetProtocol",
    "Bulkhead",
    "BulkheadFull",
    "CallPolicy",
    "CallResult",
    "Caller",
    "Cancellation",
    "CircuitBreaker",
    "Deadline",
    "DeadlineExceeded",
    "DeadlineTransport",
    "Decision",
    "DecorrelatedJitter",
    "EqualJitter",
    "Exponential",
    "Fixed",
    "FullJitter",
    "HedgePolicy",
    "Hedging",
    "Httpx2Transport",
    "Immediate",
    "InsideTransaction",
    "LoggingObserver",
    "NoAnswer",
    "Observer",
    "Outcome",
    "Problem",
    "PrometheusObserver",
    "RedisLink",
    "Request",
    "Response",
    "RetryBudget",
    "SafeClient",
    "SharedBreaker",
    "SharedBudget",
    "State",
    "Stop",
    "Ticket",
    "Transport",
    "Trouble",
    "Verdict",
    "classify",
    "new_key",
    "read_body",
]

#: Names whose module needs an extra (``redis``, ``client``): imported when first asked for.
_ON_DEMAND = {
    "AsyncDeadlineTransport": "idempotency.client.total_time",
    "AsyncHttpx2Transport": "idempotency.client.httpx2_transports",
    "AsyncSafeClient": "idempotency.client.safe_client",
    "DeadlineTransport": "idempotency.client.total_time",
    "Httpx2Transport": "idempotency.client.httpx2_transports",
    "RedisLink": "idempotency.client.shared",
    "SafeClient": "idempotency.client.safe_client",
    "SharedBreaker": "idempotency.client.shared",
    "SharedBudget": "idempotency.client.shared",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
