"""Signals at each transition, sent with ``send_robust``: a receiver that fails is logged and breaks
no request.

Every signal carries ``route``, ``tenant``, ``digest`` (bytes) and, but for ``key_replayed`` and
``key_rejected``, ``attempt`` and ``owner`` (the attempt's token, a UUID). Where it fits, besides:

- ``key_claimed``: the claim is committed; ``takeover`` (bool) says that an earlier attempt was cut
  short, ``reused`` (bool) that the key ran before and expired.
- ``operation_prepared``: an operation's intent and its recovery point are committed; the call comes
  next.
- ``operation_called``: the outside call answered; ``outcome`` is Done, Refused, NotSent or Unknown.
- ``key_completed``: work and answer are committed and the caller has not heard yet; ``status``.
- ``key_replayed``: a stored answer is about to be sent; ``status``.
- ``key_rejected``: the request was turned away; ``code`` is the problem's code.
- ``key_released``, ``key_failed``, ``key_in_doubt``: the claim ended without an answer; ``reason``
  but for a release.
- ``key_suspended``: an operation was left at its recovery point, for a retry or the job;
  ``reason``.
- ``key_reclaimed``: a job freed the key of an attempt whose lease was over.
- ``key_force_failed``: an operator ended the attempt; ``actor``, ``reason``, and ``now``, the state
  that the key has come to.

Where it may have been another than ``processing``, ``was`` is the state that the key left. An
``actor`` is there where it was no request: a job, or a person.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from django.dispatch import Signal

from idempotency.core.decisions import Lease

#: What a signal carries, by name.
Told = Mapping[str, Any]
Receiver = Callable[[Told], None]

logger = logging.getLogger("idempotency")


class Transition(Signal):
    """A signal of which this package's metrics and logs hear first, and in every process. They pay
    less for it than others: Django asks at each sending who is there and still alive, and unpacks
    the arguments for each."""

    def __init__(self) -> None:
        super().__init__(use_caching=True)
        self.own: list[Receiver] = []

    def heard(self, receive: Receiver) -> Receiver:
        """Decorate one of this package's own receivers, which get the arguments as they are."""
        self.own.append(receive)
        return receive


key_claimed = Transition()
operation_prepared = Transition()
operation_called = Transition()
key_completed = Transition()
key_replayed = Transition()
key_rejected = Transition()
key_released = Transition()
key_failed = Transition()
key_in_doubt = Transition()
key_suspended = Transition()
key_reclaimed = Transition()
key_force_failed = Transition()


def send(signal: Transition, sender: type, **arguments: Any) -> None:
    """Send to every receiver; log those that raise."""
    for receive in signal.own:
        try:
            receive(arguments)
        except Exception:
            logger.exception("receiver %r failed", receive)
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **arguments):
        if isinstance(answer, Exception):
            logger.error("receiver %r failed", receiver, exc_info=answer)


def announce(signal: Transition, lease: Lease, **arguments: Any) -> None:
    """Send a signal about the key of this lease."""
    send(
        signal,
        Lease,
        digest=lease.digest,
        route=lease.scope.route,
        tenant=lease.scope.tenant,
        attempt=lease.attempt,
        owner=lease.owner,
        **arguments,
    )


def announce_row(signal: Transition, row: Any, **arguments: Any) -> None:
    """Send a signal about the key of this row, whose owner lost it."""
    send(
        signal,
        type(row),
        digest=bytes(row.digest),
        route=row.route,
        tenant=row.tenant,
        attempt=row.attempt,
        owner=row.owner,
        **arguments,
    )
