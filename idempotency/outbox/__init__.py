"""Messages that leave with the work: written in its transaction, sent after its commit.

>>> from idempotency import outbox
>>> with transaction.atomic():                                            # doctest: +SKIP
...     charge.save()
...     outbox.send("mail", {"charge": charge.id}, destination="smtp", aggregate=charge.id)

Nothing is sent for work that rolled back, and what was committed is sent *at least* once, whoever
crashes: every send carries the same ``message.id``, by which the receiver tells a repetition (the
other end of the road is ``idempotency.inbox``). Messages of one channel, destination and aggregate
are sent in the order in which their transactions committed, one at a time; all others at once.

A channel says how its messages are delivered. Channels live in an app's ``outbox`` module, which
every process imports::

    @outbox.channel("mail", attempts=10)
    def deliver(message):
        send_mail(...)  # bounded in time, well below the channel's lease
        return outbox.Delivered()
"""

from idempotency.outbox.channels import Channel, UnknownChannel, channel
from idempotency.outbox.messages import Dead, Delivered, Ending, Message, Retry
from idempotency.outbox.writing import send

__all__ = [
    "Channel",
    "Dead",
    "Delivered",
    "Ending",
    "Message",
    "Retry",
    "UnknownChannel",
    "channel",
    "send",
]
