"""The gateway's adapter without what bounds its retries, for ``tests.benchmarks.outage``."""

from __future__ import annotations

from typing import Any

from idempotency.client import BreakerPolicy, BudgetPolicy
from payments.gateways.http import HttpGateway

#: More than any drill sees.
COUNTLESS = 1_000_000_000


class UnboundedGateway(HttpGateway):
    """Every retry is granted, and the breaker never has seen enough to open."""

    def __init__(self, url: str, **options: Any) -> None:
        budget = BudgetPolicy(ratio=1000.0, floor=COUNTLESS)
        breaker = BreakerPolicy(minimum_calls=COUNTLESS)
        super().__init__(url, budget=budget, breaker=breaker, **options)
