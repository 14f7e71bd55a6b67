"""The port to a payment gateway: what ``payments`` asks of any of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from idempotency.client import BulkheadFull
from idempotency.operations import Outcome
from payments.gateways.room import Reservation

#: What a gateway does; each is found to work or to fail by itself.
Task = Literal["charge", "refund"]


class MovementsUnknown(Exception):
    """The gateway's list could not be read to its end. A part of it would look like missing money,
    so there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Money that moved, as the gateway's own books have it."""

    kind: Task
    #: The gateway's.
    id: str
    #: In minor units.
    amount: int
    currency: str
    #: Ours, as the call gave it; empty where the books do not say.
    reference: str
    #: The downstream key of the call; empty where the books do not say.
    key: str
    #: By the gateway's clock.
    at: datetime


class Gateway(Protocol):
    """Moves money, and says honestly how each call ended.

    * ``Done``: the money moved; ``result`` is the gateway's own record, with its ``id``.
    * ``Refused``: final, no money moved; ``result`` has ``status``, ``code`` and ``message``.
    * ``NotSent``: no money moved; the call may be made again, ``retry_after`` seconds from now
      where the gateway asks for it.
    * ``Unknown``: the money may have moved. Only asking again tells: with the same key, or by
      looking it up.

    No call raises for what the network or the gateway does, but ``movements``.
    """

    @property
    def books(self) -> str:
        """Whose books a call is in. Another gateway knows nothing of it, so it may neither be asked
        what became of it nor make it again."""
        ...

    @property
    def dedupes(self) -> bool:
        """Whether a second call with the same key cannot move money again."""
        ...

    @property
    def dedupes_for(self) -> timedelta | None:
        """How long the gateway remembers a key, from the first call with it; None: for ever."""
        ...

    @property
    def longest_call(self) -> float:
        """Seconds after which any call has returned. The lease of the work must exceed it."""
        ...

    def obstacle(self) -> BulkheadFull | None:
        """Why no call could be made now, as far as this process knows without asking anybody."""
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

    def find_charge(self, *, reference: str, key: str) -> Outcome:
        """What became of the charge of that reference, or made with that key. Moves nothing.

        An empty ``key`` is not known. ``NotSent``: the gateway's books do not have it, *now*: a
        call may still be on its way. Of several (a gateway that does not dedupe) it is the first
        that moved money. ``Unknown``: it could not be asked, or is itself not done.
        """
        ...

    def find_refund(self, *, charge: str, reference: str, key: str) -> Outcome:
        """The same for a refund of the charge with that gateway id."""
        ...

    def movements(self, *, since: datetime, until: datetime) -> Iterable[Movement]:
        """All that moved from ``since`` on and before ``until``, by the gateway's clock.

        It may be read page by page while it is iterated. Raises ``MovementsUnknown``.
        """
        ...

    def close(self) -> None:
        """Close this process's connections; a later call opens new ones."""
        ...


def find(gateway: Gateway, kind: Task, *, reference: str, charge: str) -> Outcome:
    """What became of a charge or a refund whose key is not known. ``charge``: for a refund, the
    gateway's id of what it gives back."""
    if kind == "charge":
        return gateway.find_charge(reference=reference, key="")
    return gateway.find_refund(charge=charge, reference=reference, key="")
