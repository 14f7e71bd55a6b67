"""What a gateway tells us by itself, in whatever language it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from payments.gateways.base import Task


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The gateway says how a charge or refund of ours ended."""

    kind: Task
    moved: bool
    #: Ours.
    reference: str
    #: The gateway's.
    id: str
    amount: int
    currency: str
    #: Of the charge that a refund is of, the gateway's; empty for a charge.
    charge: str
    #: Why it was refused; empty where money moved.
    code: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, whose signature has been checked."""

    #: The same at every delivery.
    id: str
    #: None for what is none of our business.
    ended: Ended | None
    #: What is the same at every delivery, apart from the id.
    content: bytes = b""


@runtime_checkable
class ReadsEvents(Protocol):
    """An adapter whose gateway signs in a way of its own."""

    def read_event(self, *, body: bytes, headers: Mapping[str, str]) -> Event:
        """Check the signature over the bytes as they came, and read them.

        Raises ``NotSigned``, and ``ParseError`` for what the gateway would never send.
        """
        ...
