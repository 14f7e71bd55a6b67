"""Counts deliveries for Prometheus, when prometheus-client is installed. Destinations are no label:
there are as many as there are receivers."""

from __future__ import annotations

from typing import Any

from idempotency.outbox.messages import Dead, Delivered, Ending, Message, Retry
from idempotency.outbox.signals import message_settled

try:
    from prometheus_client import Counter
except ImportError:  # the ``metrics`` extra is not installed: the signals remain
    Counter = None  # type: ignore[assignment,misc]

#: Outcomes: delivered, retried (it will be sent again), dead (an operator is needed).
DELIVERIES = (
    None
    if Counter is None
    else Counter("idempotency_outbox_deliveries", "Sends by outcome.", ["channel", "outcome"])
)

_OUTCOMES = {Delivered: "delivered", Retry: "retried", Dead: "dead"}


@message_settled.heard
def _settled(*, message: Message, ending: Ending, **kwargs: Any) -> None:
    if DELIVERIES is not None:
        DELIVERIES.labels(channel=message.channel, outcome=_OUTCOMES[type(ending)]).inc()
