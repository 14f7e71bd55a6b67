"""The outbox's channels of this product; every process imports this module."""

from idempotency import outbox
from idempotency.outbox import Ending, Message
from payments.webhooks.delivery import deliver
from payments.webhooks.events import CHANNEL


@outbox.channel(CHANNEL)
def webhooks(message: Message) -> Ending:
    """Tell a merchant's endpoint."""
    return deliver(message)
