"""Counts deliveries for Prometheus, when prometheus-client is installed. Destinations are no label:
there are as many as there are receivers."""

from __future__ import annotations

from idempotency.outbox.messages import Dead, Delivered, Retry
from idempotency.outbox.signals import message_settled
from idempotency.signals import Told

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
def _settled(told: Told) -> None:
    if DELIVERIES is not None:
        DELIVERIES.labels(
            channel=told["message"].channel, outcome=_OUTCOMES[type(told["ending"])]
        ).inc()
