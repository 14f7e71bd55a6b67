"""The admin of keys, of their audit trail, and of the outbox. Stored responses are shown with their
key only, and the history of a message with the message."""

from idempotency.admin.doubts import DoubtAdmin
from idempotency.admin.events import KeyEventAdmin
from idempotency.admin.keys import IdempotencyKeyAdmin
from idempotency.admin.operations import OperationsAdmin
from idempotency.admin.outbox import OutboxMessageAdmin
from idempotency.admin.proposals import ProposalAdmin

__all__ = [
    "DoubtAdmin",
    "IdempotencyKeyAdmin",
    "KeyEventAdmin",
    "OperationsAdmin",
    "OutboxMessageAdmin",
    "ProposalAdmin",
]
