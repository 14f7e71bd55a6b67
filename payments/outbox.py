"""The outbox's channels of this product; every process imports this module."""

from idempotency import outbox
from idempotency.client import BreakerPolicy
from idempotency.outbox import Ending, Message
from payments.webhooks import delivery, events, gateway_events, settling

#: "Later again" says nothing about the gateway, whose calls have a breaker of their own.
NEVER_OPENS = BreakerPolicy(window=1, minimum_calls=1_000_000)


@outbox.channel(events.CHANNEL)
def webhooks(message: Message) -> Ending:
    """Tell a merchant's endpoint."""
    return delivery.deliver(message)


@outbox.channel(gateway_events.CHANNEL, breaker=NEVER_OPENS)
def settle_gateway_event(message: Message) -> Ending:
    """End what the gateway says has ended."""
    return settling.settle(message)
