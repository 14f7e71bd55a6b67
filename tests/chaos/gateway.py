"""The gateway's adapter with a breaker that trusts it again soon, for the chaos run.

Outages last seconds here and come every few of them. The product's own breaker would, after several
in a row, stay open for a minute, and nothing would reach the gateway in most of the run.
"""

from __future__ import annotations

from typing import Any

from idempotency.client import BreakerPolicy, BudgetPolicy
from payments.gateways.http import HttpGateway


class SoonTrusted(HttpGateway):
    def __init__(self, url: str, **options: Any) -> None:
        breaker = BreakerPolicy(open_for=0.5, open_cap=2.0)
        super().__init__(url, budget=BudgetPolicy(ratio=0.2, floor=60), breaker=breaker, **options)
