"""Signals at each transition, sent with ``send_robust``: a receiver that fails is logged and breaks
no request.

Every signal carries ``route``, ``tenant``, ``digest`` (bytes), ``attempt`` and, where it fits:

- ``key_claimed``: the claim is committed; ``takeover`` (bool) says that an earlier attempt was cut
short.
- ``operation_prepared``: an operation's intent and its recovery point are committed; the call comes
next.
- ``operation_called``: the outside call answered; ``outcome`` is Done, Refused, NotSent or Unknown.
- ``key_completed``: work and answer are committed and the caller has not heard yet; ``status``.
- ``key_replayed``: a stored answer is about to be sent; ``status``.
- ``key_rejected``: the request was turned away; ``code`` is the problem's code.
- ``key_released``, ``key_failed``, ``key_in_doubt``: the claim ended without an answer.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

key_claimed = Signal(use_caching=True)
operation_prepared = Signal(use_caching=True)
operation_called = Signal(use_caching=True)
key_completed = Signal(use_caching=True)
key_replayed = Signal(use_caching=True)
key_rejected = Signal(use_caching=True)
key_released = Signal(use_caching=True)
key_failed = Signal(use_caching=True)
key_in_doubt = Signal(use_caching=True)

logger = logging.getLogger("idempotency")


def send(signal: Signal, sender: type, **arguments: Any) -> None:
    """Send to every receiver; log those that raise."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **arguments):
        if isinstance(answer, Exception):
            logger.error("receiver %r failed", receiver, exc_info=answer)
