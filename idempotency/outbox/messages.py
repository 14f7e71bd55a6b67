"""A message as its channel gets it, and how a delivery may end."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be delivered, and which attempt this is."""

    #: The same on every send, also after a re-send by an operator.
    id: uuid.UUID
    #: Grows with the order of writing; among messages of one aggregate, of their commits.
    sequence: int
    channel: str
    destination: str
    aggregate: str
    payload: Any
    #: 1 for the first. A send that was cut short counts.
    attempt: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Delivered:
    """It arrived. ``detail`` is for the message's history: ``204 No Content``."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """It may not have arrived: send it again after the channel's back-off, and not before
    ``retry_after`` seconds (a day at most). ``reason`` is for the message's history."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """Sending it again makes no sense: the destination is gone, or refuses it for what it is. It
    waits for an operator, and so does what follows it under the same aggregate."""

    reason: str


Ending = Delivered | Retry | Dead


def as_declared(ending: Ending) -> Ending:
    """The ending with fields of the types that they are declared with. A channel may well say
    ``Delivered(204)``; what cannot be read as such a type raises ``TypeError`` or ``ValueError``.
    """
    match ending:
        case Delivered(detail):
            return Delivered(_words(detail))
        case Retry(reason, retry_after):
            return Retry(_words(reason), _seconds(retry_after))
        case Dead(reason):
            return Dead(_words(reason))


def _words(said: Any) -> str:
    return "" if said is None else str(said)


def _seconds(asked: Any) -> float | None:
    if asked is None:
        return None
    seconds = asked.total_seconds() if isinstance(asked, timedelta) else float(asked)
    if math.isnan(seconds):
        raise ValueError("retry_after is no number")
    return seconds
