"""A key in plain words: how it stands, and what a retry would get now. ``story.py`` tells what
happened to it.

The functions of :class:`KeyFacts` are pure; :func:`facts_of` reads what it is given and asks the
database nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from django.utils.translation import gettext as _

from idempotency import encryption, operations
from idempotency.core.states import State
from idempotency.kept import age_of, is_repeatable
from idempotency.models import IdempotencyKey, StoredResponse

__all__ = [
    "KeyFacts",
    "Repeatable",
    "Risk",
    "facts_of",
    "freed_leads_to_doubt",
    "operation_of",
    "other_request",
    "retry_now",
    "risk_of_force_fail",
]


class Repeatable(Enum):
    """Whether an operation's outside call may be made again, under the same downstream key."""

    YES = "yes"
    NO = "no"
    #: No operation of that name is known to this process, so nobody can resume it here.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What the plain words depend on."""

    state: State
    attempt: int
    #: The key has a lease and its time is over.
    lease_over: bool = False
    expired: bool = False
    recovery_point: str = ""
    repeatable: Repeatable = Repeatable.YES
    #: Status of the stored answer; None where there is none.
    status: int | None = None
    #: False: the answer was too large or streamed, so only its status and headers are there.
    body_kept: bool = True
    #: An operator settled the key for good: its answer is no success of the request.
    ended: bool = False

    @property
    def is_open(self) -> bool:
        """Only an open key can be force-failed."""
        return self.state in (State.PROCESSING, State.IN_DOUBT)

    @property
    def stuck(self) -> bool:
        """The attempt stopped without finishing, and nothing has picked the key up yet."""
        return self.state is State.PROCESSING and self.lease_over


def facts_of(key: IdempotencyKey, now: datetime, answer: StoredResponse | None = None) -> KeyFacts:
    """The facts of a row as it was read at ``now``, by the database's clock."""
    lease, expires = key.lease_expires_at, key.expires_at
    return KeyFacts(
        state=State(key.state),
        attempt=key.attempt,
        lease_over=lease is not None and lease <= now,
        expired=expires is not None and expires <= now,
        recovery_point=key.recovery_point,
        repeatable=_repeatable(key, now),
        status=None if answer is None else answer.status,
        body_kept=answer is not None and _is_there(answer),
        # Completing clears the failure; only a force-fail leaves one on a settled key.
        ended=key.state == State.SUCCEEDED and bool(key.failure),
    )


def _is_there(answer: StoredResponse) -> bool:
    """Whether the body can still be sent: it was kept, and the key that sealed it is there."""
    key = encryption.key_of(answer.headers)
    return answer.body is not None and encryption.is_readable(key)


def operation_of(key: IdempotencyKey) -> str:
    """The name of the operation that a key stands for; empty for atomic work."""
    if not key.recovery_point:
        return ""
    context: Any = key.context
    name = context.get("operation", "") if isinstance(context, dict) else ""
    return str(name) or key.operation


def _repeatable(key: IdempotencyKey, now: datetime) -> Repeatable:
    if not key.recovery_point:
        return Repeatable.YES
    operation = operations.find(operation_of(key))
    if operation is None:
        return Repeatable.UNKNOWN
    return Repeatable.YES if is_repeatable(operation, age_of(key, now)) else Repeatable.NO


def retry_now(facts: KeyFacts) -> str:
    """What the same request gets when it is sent again now, with the same key."""
    if facts.expired:
        return _("The key has expired. A request that bears it runs as a new one.")
    if facts.state is State.SUCCEEDED:
        return _retry_of_succeeded(facts)
    if facts.state is State.IN_DOUBT:
        return _(
            "Nobody can know whether the outside effect happened. A retry gets 409 "
            "outcome_in_doubt until it is settled: by the reconciling job, which asks the other "
            "side, or by an operator."
        )
    if facts.state is State.PROCESSING and not facts.lease_over:
        return _(
            "Attempt %(attempt)d is running. A retry waits for its answer where the view allows "
            "waiting, and otherwise gets 409 idempotency_key_in_use."
        ) % {"attempt": facts.attempt}
    return _retry_of_ended(facts)


def _retry_of_succeeded(facts: KeyFacts) -> str:
    if facts.status is None or not facts.body_kept:
        return _(
            "The request is done, but its answer is not there: it was too large, streamed or "
            "erased, or its day or its encryption key is gone. A retry gets 409 "
            "response_not_stored; the work does not run again."
        )
    text = _("A retry with the same request gets the stored %d, byte for byte.") % facts.status
    ended = _("An operator ended this request.")
    return f"{ended} {text}" if facts.ended else text


def _retry_of_ended(facts: KeyFacts) -> str:
    """No attempt is running: a retry starts the next one."""
    values = {"attempt": facts.attempt + 1, "point": facts.recovery_point}
    if not facts.recovery_point:
        text = _(
            "No attempt is running, and what the last one did here was rolled back. A retry with "
            "the same request runs it again, as attempt %(attempt)d."
        )
    elif facts.repeatable is Repeatable.YES:
        text = _(
            "A retry with the same request resumes after “%(point)s”: it repeats the outside call "
            "under the same downstream key, as attempt %(attempt)d."
        )
        if facts.stuck:
            job = _("The recovery job does the same without the client.")
            text = f"{text} {job}"
    elif facts.repeatable is Repeatable.NO:
        text = _(
            "The outside call may have happened and cannot be repeated safely. A retry with the "
            "same request asks the other side, and gets 409 outcome_in_doubt where that does not "
            "tell."
        )
    else:
        text = _(
            "A retry cannot resume after “%(point)s”: this process knows no operation of that "
            "name. It would get a server error."
        )
    return text % values


def other_request(facts: KeyFacts) -> str:
    """What a different request with the same key gets; empty where it would simply run."""
    if facts.expired:
        return ""
    return _("Any other request with this key gets 422 idempotency_key_reused.")


class Risk(Enum):
    """How much an operator has to know before ending an attempt."""

    NONE = "none"
    #: A live worker would lose its work, and nothing else.
    WORK = "work"
    #: An effect outside this database may have happened, or may be happening now.
    EFFECT = "effect"


def risk_of_force_fail(facts: KeyFacts) -> tuple[Risk, str]:
    """What ending the attempt would put at risk, and that in words."""
    if facts.state is State.IN_DOUBT:
        return Risk.EFFECT, _("An outside effect may have happened. Find out before you decide.")
    if facts.recovery_point:
        if facts.lease_over:
            return Risk.EFFECT, _("The outside call may have happened. Find out before you decide.")
        return Risk.EFFECT, _("The outside call may be happening now. Find out before you decide.")
    if facts.lease_over:
        return Risk.NONE, _("Its work was rolled back; nothing happened in this database.")
    return Risk.WORK, _("A worker may still run it. Its work will be rolled back.")


def freed_leads_to_doubt(facts: KeyFacts) -> bool:
    """Freeing the key for a retry would not help: unless the other side can be asked, the retry
    would put it in doubt (again)."""
    return bool(facts.recovery_point) and facts.repeatable is not Repeatable.YES
