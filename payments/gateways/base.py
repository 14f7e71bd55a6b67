"""The port to a payment gateway: what ``payments`` asks of any of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

from idempotency.operations import Outcome
from payments.gateways.room import Reservation

#: What a gateway does; each is found to work or to fail by itself.
Task = Literal["charge", "refund"]


class Gateway(Protocol):
    """Moves money, and says honestly how each call ended.

    * ``Done``: the money moved; ``result`` is the gateway's own record, with its ``id``.
    * ``Refused``: final, no money moved; ``result`` has ``status``, ``code`` and ``message``.
    * ``NotSent``: no money moved; the call may be made again, ``retry_after`` seconds from now
      where the gateway asks for it.
    * ``Unknown``: the money may have moved. Only asking again with the same key tells.

    No call raises for what the network or the gateway does.
    """

    @property
    def dedupes(self) -> bool:
        """Whether a second call with the same key cannot move money again."""
        ...

    @property
    def longest_call(self) -> float:
        """Seconds after which any call has returned. The lease of the work must exceed it."""
        ...

    def room_for(self, task: Task) -> AbstractContextManager[Reservation]:
        """Make sure that a call can be made now, before anything is written for it.

        The place stays taken for the call whose reference it is kept for. Raises ``CallNotSent``
        with the seconds to wait where every place is taken or the gateway is known to fail.
        """
        ...

    def charge(
        self, *, amount: int, currency: str, source: str, reference: str, key: str
    ) -> Outcome:
        """Charge ``amount`` (minor units) to a source; ``reference`` is our name for it."""
        ...

    def refund(self, *, charge: str, amount: int, reference: str, key: str) -> Outcome:
        """Give back ``amount`` (minor units) of the charge with that gateway id."""
        ...
