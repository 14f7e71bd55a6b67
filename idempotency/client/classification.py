"""What the end of an attempt means: a success, an answer, a reason to try again, or to stop.

========================================  =====================================================
verdict                                   for
========================================  =====================================================
``SUCCESS``                               below 400
``ANSWER``: final, the caller's to read   402, 404, 409 (not in use), 410, 422: a declined card is
                                          a business outcome, and asking again changes nothing
``RETRY``                                 425, 429, 503, nothing sent (no connection);
                                          and, if a repetition is safe: 408, 500, 502, 504, a
                                          broken or timed-out attempt, 409 that says *in use*
``STOP``: failed, and no retry helps      every other status, TLS and certificate errors, the
                                          caller's own cancellation, what is not known
========================================  =====================================================

A repetition is safe when the request carries an idempotency key or its method is safe (RFC 9110
section 9.2.1). The rule covers 502 and 504 too: a proxy says them when *its* wait for the answer
ended, so the work behind it may have been done.

Our own problem documents need no guess: ``retry`` is ``same_key``, ``new_key`` or ``never``. The
last two stop whatever the status is. The first allows, and does not urge: 411 with ``same_key``
asks for another request, not for the same one again.

Source: the table of retryable outcomes common to stripe-python, urllib3 and gRPC A6; RFC 9110.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from idempotency.client import retry_after
from idempotency.client.breaker import Outcome
from idempotency.core.errors import KeyInUse, LeaseLost

__all__ = [
    "SAFE_METHODS",
    "Answer",
    "Decision",
    "Problem",
    "Trouble",
    "Verdict",
    "classify",
    "is_repeatable",
]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

#: The server refused before it did anything.
_REFUSED = frozenset({425, 429, 503})
#: The work may have been done.
_UNCERTAIN = frozenset({408, 500, 502, 504})
#: The outcomes that the server half stores: decisions about the business.
_BUSINESS = frozenset({402, 404, 409, 410, 422})
_IN_USE = frozenset({KeyInUse.code, LeaseLost.code})

#: Bytes of a problem document that are worth reading.
_LARGEST_PROBLEM = 65_536


class Verdict(Enum):
    """What to do with the end of an attempt."""

    #: It worked.
    SUCCESS = "success"
    #: The server decided, and not in the caller's favour. Final.
    ANSWER = "answer"
    #: Another attempt of the same request may work, and cannot hurt.
    RETRY = "retry"
    #: It failed, and another attempt cannot help or might do the work twice.
    STOP = "stop"


class Trouble(Enum):
    """How an attempt ended without an answer. Transports sort their exceptions into these."""

    #: No connection was made: refused, unreachable, no such name, timed out before it stood.
    CONNECT = "connect"
    #: No connection of the pool came free in time.
    POOL = "pool"
    #: The TLS handshake failed, or the certificate is not to be trusted.
    TLS = "tls"
    #: The connection broke while the request was written.
    WRITE = "write"
    #: The connection broke, or spoke nonsense, while the answer was awaited or read.
    READ = "read"
    #: Our own timeout of the attempt ended.
    TIMEOUT = "timeout"
    #: The caller took the request back.
    CANCELLED = "cancelled"
    #: Our breaker or bulkhead let nothing through.
    REFUSED = "refused"
    #: The request's body could not be read, or cannot be read twice.
    BODY = "body"
    #: Anything else. Never retried: what is not understood is not repeated.
    UNKNOWN = "unknown"

    @property
    def may_have_arrived(self) -> bool:
        """Whether the server may have done the work."""
        return self in _MAYBE_DONE


_MAYBE_DONE = frozenset(
    {Trouble.WRITE, Trouble.READ, Trouble.TIMEOUT, Trouble.CANCELLED, Trouble.UNKNOWN}
)
_NEVER_SENT = frozenset({Trouble.CONNECT, Trouble.POOL})
_BROKEN = frozenset({Trouble.WRITE, Trouble.READ, Trouble.TIMEOUT})
#: What says nothing about the health of the other side.
_OUR_OWN = frozenset(
    {Trouble.POOL, Trouble.CANCELLED, Trouble.REFUSED, Trouble.BODY, Trouble.UNKNOWN}
)


@dataclass(frozen=True, slots=True)
class Problem:
    """The members of a problem document (RFC 9457) that decide: ``code`` and ``retry``."""

    code: str | None = None
    #: ``same_key``, ``new_key`` or ``never``; None where the document is not one of ours.
    retry: str | None = None

    @classmethod
    def read(cls, content_type: str | None, body: bytes) -> Self | None:
        """Return the problem that a body holds; None for everything else. Never raises."""
        media_type = (content_type or "").partition(";")[0].strip().lower()
        if media_type != "application/problem+json" or len(body) > _LARGEST_PROBLEM:
            return None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        return cls(_string(document.get("code")), _string(document.get("retry")))


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as far as it decides what comes next. Names of headers may be in any case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None

    def header(self, name: str) -> str | None:
        """The value of a header, or None."""
        wanted = name.lower()
        return next((value for key, value in self.headers.items() if key.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, the reason in a few words for the history, and what the breaker is to learn."""

    verdict: Verdict
    reason: str
    health: Outcome


def is_repeatable(method: str, keyed: bool) -> bool:
    """Whether sending the request twice does the work once."""
    return keyed or method.upper() in SAFE_METHODS


def classify(end: Answer | Trouble, *, method: str, keyed: bool) -> Decision:
    """Decide what the end of an attempt means.

    ``keyed``: the request carries an ``Idempotency-Key``, the same on every attempt. Pure, total,
    and the same for every attempt: how many there may be is not decided here.
    """
    repeatable = is_repeatable(method, keyed)
    if isinstance(end, Trouble):
        return _of_trouble(end, repeatable)
    return Decision(_of_answer(end, repeatable), _reason(end), _health(end.status))


def _of_trouble(trouble: Trouble, repeatable: bool) -> Decision:
    retried = trouble in _NEVER_SENT or (trouble in _BROKEN and repeatable)
    verdict = Verdict.RETRY if retried else Verdict.STOP
    health = Outcome.NEUTRAL if trouble in _OUR_OWN else Outcome.FAILURE
    reason = trouble.value
    if trouble in _BROKEN and not repeatable:
        reason += ", and without a key the work might be done twice"
    return Decision(verdict, reason, health)


def _of_answer(answer: Answer, repeatable: bool) -> Verdict:
    if answer.status < 400:
        return Verdict.SUCCESS
    if answer.problem and answer.problem.retry in ("never", "new_key"):
        return Verdict.STOP
    if answer.status in _REFUSED:
        return Verdict.RETRY
    if repeatable and (answer.status in _UNCERTAIN or _says_in_use(answer)):
        return Verdict.RETRY
    return Verdict.ANSWER if answer.status in _BUSINESS else Verdict.STOP


def _says_in_use(answer: Answer) -> bool:
    """Whether a 409 is about the first request still running, and not about the business."""
    if answer.status != 409:
        return False
    if answer.problem and answer.problem.code in _IN_USE:
        return True
    return retry_after.is_well_formed(answer.header("Retry-After"))


def _health(status: int) -> Outcome:
    if status < 400:
        return Outcome.SUCCESS
    return Outcome.NEUTRAL if status < 500 else Outcome.FAILURE


def _reason(answer: Answer) -> str:
    code = answer.problem.code if answer.problem else None
    return f"{answer.status} {code}" if code else str(answer.status)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
