"""What a view decides about its keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Literal

#: Returned, these say "not now" or "not you": keeping them would answer a good retry with a stale
#: refusal.
NEVER_STORED = frozenset({401, 403, 408, 412, 425, 428, 429})


class Verdict(Enum):
    """What becomes of the claim once the handler is done."""

    #: Commit the work and keep the answer.
    STORE = "store"
    #: Roll back and forget the key: as if the request never came.
    RELEASE = "release"
    #: Roll back and keep the fingerprint: only the same request may run again.
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one view. Durations are :class:`~datetime.timedelta`."""

    required: bool
    methods: frozenset[str]
    ttl: timedelta
    lease: timedelta
    #: "route": a key belongs to one method and URL pattern; "tenant": to the whole account.
    scope: Literal["route", "tenant"]
    #: The body field that may carry the key beside the header; None: the header only.
    body_field: str | None
    #: "reject": a duplicate of a running request hears 409 at once; "wait": it is held for the
    #: first answer.
    busy: Literal["reject", "wait"]
    #: How long a held duplicate waits at most.
    wait: timedelta
    #: "canonical": equal requests may differ in spelling; "raw": the body's bytes must be equal.
    fingerprint: Literal["canonical", "raw"]
    #: Body fields that do not belong to the request's identity.
    fingerprint_exclude: frozenset[str]
    #: Which client errors, returned, are answers to keep. None: all but NEVER_STORED. Answers below
    #: 400 always are.
    stored_statuses: frozenset[int] | None
    max_response_bytes: int
    key_min_length: int
    key_uuid_only: bool

    def verdict(self, status: int, *, rolled_back: bool = False) -> Verdict:
        """What to do with an answer the handler *returned*.

        ``rolled_back``: a handler that refuses marked its transaction for rollback, so there is no
        work left to record. One that says it is done has failed then.
        """
        if status >= 500:
            return Verdict.FAIL
        if rolled_back:
            return Verdict.RELEASE
        if status < 400:
            return Verdict.STORE
        if self.stored_statuses is None:
            return Verdict.RELEASE if status in NEVER_STORED else Verdict.STORE
        return Verdict.STORE if status in self.stored_statuses else Verdict.RELEASE
