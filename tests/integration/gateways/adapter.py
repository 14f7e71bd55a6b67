"""The adapter as the tests hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idempotency.operations import Outcome
from payments.gateways.http import HttpGateway


class Client:
    """An adapter that records its waits instead of waiting."""

    def __init__(self, url: str, **options: Any) -> None:
        self.pauses: list[float] = []
        self.adapter = HttpGateway(url, **{"pause": self.pauses.append, "calls": 100, **options})

    def charge(self, source: str = "tok_visa", *, key: str = "k1", amount: int = 1000) -> Outcome:
        return self.adapter.charge(
            amount=amount, currency="EUR", source=source, reference="ch_1", key=key
        )


Connect = Callable[..., Client]
