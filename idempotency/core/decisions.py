"""What a claim came to: one of these, and nothing read before it may be acted on."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Any

from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that wants its key: who asks, for what, and for how long."""

    scope: Scope
    fingerprint: bytes
    fingerprint_version: int
    owner: uuid.UUID
    lease: timedelta


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run under a key, until it expires or is taken over.

    ``key_id`` names the generation and ``owner`` the attempt: together they fence every write of
    the owner.
    """

    key_id: int
    owner: uuid.UUID
    attempt: int
    digest: bytes
    scope: Scope
    response_day: date
    #: Empty, or the last point an operation is known to have passed.
    recovery_point: str = ""
    context: dict[str, Any] | None = None
    #: An earlier attempt was cut short: its lease ran out.
    takeover: bool = False
    #: The key ran before, and expired.
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Won:
    """The claim is ours."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Replay:
    """The request was answered before. ``response`` None: the answer itself is gone or was never
    kept."""

    response: RecordedResponse | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owner holds the lease. ``lease_left`` is by the database's clock; zero where it is
    not known."""

    lease_left: timedelta


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key belongs to another request."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The key waits for a person."""


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The key was fingerprinted by another version: claim again with that one."""

    fingerprint_version: int


class Standing(Enum):
    """Where a key stands, read without a claim: good for turning a request away, never for running
    it."""

    #: No request used it, or its time is up: the next one runs as the first.
    NEW = "new"
    #: An owner holds the lease.
    RUNNING = "running"
    #: The next request runs it again: it failed, or its lease is over.
    REPEATABLE = "repeatable"
    #: It is settled or in doubt, so the next request runs nothing.
    ANSWERED = "answered"


Decision = Won | Replay | Busy | Mismatch | InDoubt | OtherVersion
