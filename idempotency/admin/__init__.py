"""The admin of keys and of their audit trail. Stored responses are shown with their key only."""

from idempotency.admin.events import KeyEventAdmin
from idempotency.admin.keys import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin", "KeyEventAdmin"]
