"""What happened to a key, in order and in plain words: from its first claim to its last replay.

It is put together from the row, its events and what Redis has noted; nothing here asks a database.
What none of them has is said by :func:`not_recorded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from idempotency import operations
from idempotency.core.keys import log_digest
from idempotency.core.states import State
from idempotency.definitions import Outcome
from idempotency.enquiry import WORDS, record_of
from idempotency.inspection import KeyFacts, operation_of
from idempotency.kept import downstream_key
from idempotency.models import Choice, EventKind, IdempotencyKey, KeyEvent
from idempotency.replays import Replays

__all__ = [
    "Chapter",
    "Material",
    "answer_in_words",
    "downstream_key_of",
    "not_recorded",
    "outcome_in_words",
    "story_of",
]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One line of a key's story. ``at`` None: now."""

    at: datetime | None
    title: str
    text: str = ""
    #: "good", "bad", "warn" or "" for how it looks; the words never depend on it.
    tone: str = ""
    actor: str = ""
    #: Label and value of what somebody may want to copy.
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Material:
    """What a story is told from."""

    key: IdempotencyKey
    facts: KeyFacts
    events: list[KeyEvent]
    replays: Replays | None = None
    #: Empty where the viewer may not see it, or there is none.
    downstream_key: str = ""
    #: There are more events; the oldest were left out.
    cut: bool = False


def story_of(told: Material) -> list[Chapter]:
    """The story of a key in order: claimed, what happened since, how it stands, when it expires."""
    events = sorted(told.events, key=lambda event: event.at)
    late = [event for event in events if _is_after_the_end(told.key, event)]
    past = [_first(told, events), *(_event(event) for event in events if event not in late)]
    if (recovery := _recovery(told)) is not None:
        earlier = [it for it in past if it.at is not None and recovery.at and it.at < recovery.at]
        past.insert(len(earlier), recovery)
    # An event that brought the ending about is written a moment after it.
    ended = [*past, *_ending(told), *map(_event, late), *_replayed(told)]
    return [*ended, *_present(told.key, told.facts), *_expiry(told.key, told.facts)]


def downstream_key_of(key: IdempotencyKey) -> str:
    """The key of the operation's outside call; made again with the present ``SECRET`` once the
    operation has ended. Empty for atomic work, and where the operation is not known here."""
    if kept := (key.context or {}).get("key"):
        return str(kept)
    operation = operations.find(operation_of(key))
    prepared = key.prepared_attempt
    if operation is None or prepared is None:
        return ""
    return downstream_key(key.pk, operation(), prepared)


def not_recorded(key: IdempotencyKey, *, replays_noted: bool) -> list[str]:
    """What a story lacks, and where it can be found."""
    lacks = [
        _("Attempts that failed and were simply repeated: only their number is kept."),
        _("Requests that were turned away, such as a 409 or a 422."),
    ]
    if key.recovery_point:
        lacks.append(_("An outside call that was answered at once: the ending tells of it."))
    if replays_noted:
        lacks.append(_("Replays that Redis was not told of: it may be a second late, or was lost."))
    else:
        lacks.append(_("Replays: without Redis, noting them would cost each of them a write."))
    where = _("The log has a line for each of them, under key=%s.")
    return [*lacks, where % log_digest(bytes(key.digest))]


def answer_in_words(answer: str, record: str, because: str) -> str:
    """What the other side said, as it is kept: see ``enquiry.WORDS``."""
    texts = {
        "done": _("It has done it, and calls it “%(record)s”."),
        "refused": _("It has refused it: “%(record)s”."),
        "not_sent": _("It has nothing of it now: %(because)s"),
        "unknown": _("It does not say: %(because)s"),
    }
    text = texts.get(answer, _("It answered something this release does not know."))
    return text % {"record": record or "?", "because": because}


def outcome_in_words(answer: Outcome) -> str:
    """What the other side has just said."""
    because = getattr(answer, "reason", "")
    return answer_in_words(WORDS[type(answer)], record_of(answer), because)


def _first(told: Material, events: list[KeyEvent]) -> Chapter:
    text = _("The key was claimed; attempt 1 began.")
    owner = _first_owner(told, events)
    details = ((_("Owner"), owner),) if owner else ()
    return Chapter(told.key.created_at, _("First request"), text, details=details)


def _first_owner(told: Material, events: list[KeyEvent]) -> str:
    """The token of attempt 1, where something still has it."""
    if told.cut:
        return ""
    for event in events:
        data: Any = event.data
        if isinstance(data, dict) and "from" in data:
            taken = event.kind in (EventKind.TAKEOVER, EventKind.RESOLVED)
            return str(data["from"]) if event.attempt == (2 if taken else 1) else ""
    return str(told.key.owner) if told.key.attempt == 1 else ""


def _recovery(told: Material) -> Chapter | None:
    key = told.key
    if not key.recovery_point or key.recovery_point_at is None:
        return None
    operation = operations.find(operation_of(key))
    values = {
        "attempt": key.prepared_attempt or "?",
        "where": (operation and operation.service) or _("the other side"),
    }
    text = _(
        "Attempt %(attempt)s committed its intent and went on to call %(where)s. Whoever takes "
        "over goes on from here."
    )
    details = [(_("Operation"), operation_of(key)), (_("Downstream key"), told.downstream_key)]
    return Chapter(
        key.recovery_point_at,
        _("Recovery point “%s”") % key.recovery_point,
        text % values,
        details=tuple(pair for pair in details if pair[1]),
    )


_TONES = {
    EventKind.TAKEOVER: "warn",
    EventKind.RECLAIMED: "warn",
    EventKind.FORCE_FAILED: "bad",
    EventKind.IN_DOUBT: "bad",
    EventKind.RESOLVED: "good",
    EventKind.SUSPENDED: "warn",
    EventKind.WITHDRAWN: "warn",
    EventKind.DAY_MISSING: "warn",
}


def _event(event: KeyEvent) -> Chapter:
    data: Any = event.data if isinstance(event.data, dict) else {}
    # A kind of a later release may be in the table while this one still runs.
    kind = EventKind(event.kind) if event.kind in EventKind.values else None
    title = str(kind.label if kind else event.kind).capitalize()
    text = _text(kind, event, data) if kind else event.reason
    tone = _TONES.get(kind, "") if kind else ""
    details = () if kind is EventKind.ASKED else _details(data)
    return Chapter(event.at, title, text, tone, event.actor, details)


def _text(kind: EventKind, event: KeyEvent, data: dict[str, Any]) -> str:
    texts = {
        EventKind.TAKEOVER: _("A lease ran out; attempt %(attempt)d took over."),
        EventKind.RECLAIMED: _("The lease of attempt %(attempt)d ran out; a job freed the key."),
        EventKind.FORCE_FAILED: _("An operator ended attempt %(attempt)d: %(reason)s"),
        EventKind.IN_DOUBT: _("Attempt %(attempt)d ended without anybody knowing how: %(reason)s"),
        EventKind.RESOLVED: _("The doubt was settled: %(reason)s"),
        EventKind.SUSPENDED: _(
            "Attempt %(attempt)d could not find out how its outside call went: %(reason)s"
        ),
        EventKind.WITHDRAWN: _(
            "The outside call of attempt %(attempt)d was certainly not sent, so its intent was "
            "withdrawn: %(reason)s"
        ),
        EventKind.ASKED: _("The other side was asked. %(answer)s %(reason)s"),
        EventKind.PROPOSED: _("“%(choice)s” waits for another person: %(reason)s"),
        EventKind.REJECTED: _("A proposal was rejected: %(reason)s"),
        EventKind.REUSED: _(
            "The key had been used before, under record %(previous)s, and expired."
        ),
        EventKind.DAY_MISSING: _(
            "The partition of the day was missing; %(used)s was used instead."
        ),
    }
    choice = data.get("choice", "?")
    answered = (str(data.get(name, "")) for name in ("answer", "record", "because"))
    values = {
        "attempt": event.attempt,
        "reason": event.reason,
        "answer": answer_in_words(*answered),
        "choice": Choice(choice).label if choice in Choice.values else choice,
        "previous": data.get("previous_id", "?"),
        "used": data.get("used", "?"),
    }
    return (texts[kind] % values).strip()


def _details(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Of an event: whose attempt ended and whose began, and what was written."""
    labels = [
        ("from", _("Owner fenced off")),
        ("to", _("Owner")),
        ("record", _("The other side's record")),
        ("proposed_by", _("Proposed by")),
    ]
    return tuple((label, str(data[name])) for name, label in labels if data.get(name))


def _is_after_the_end(key: IdempotencyKey, event: KeyEvent) -> bool:
    """Only a proposal can be dealt with when all is over."""
    ended = key.completed_at
    return event.kind == EventKind.REJECTED and ended is not None and event.at > ended


def _ending(told: Material) -> list[Chapter]:
    key, facts = told.key, told.facts
    if key.completed_at is None:
        return []
    if facts.state is State.SUCCEEDED:
        title = _("Answered") if facts.status is None else _("Answered %d") % facts.status
        if facts.ended:
            text = _("An operator stored this answer for every retry.")
            return [Chapter(key.completed_at, title, text, "bad")]
        return [Chapter(key.completed_at, title, _completion(told), "good")]
    text = _("Attempt %(attempt)d ended: %(reason)s") % {
        "attempt": facts.attempt,
        "reason": key.failure or _("no reason was noted"),
    }
    return [Chapter(key.completed_at, _("Failed"), text, "bad")]


def _completion(told: Material) -> str:
    attempt = told.facts.attempt
    if any(it.kind == EventKind.RESOLVED and it.attempt == attempt for it in told.events):
        return _("The answer that came of it was committed with it.")
    if told.key.recovery_point:
        text = _(
            "The outside call of attempt %d was answered; result and answer were kept together."
        )
        return text % attempt
    return _("Attempt %d completed; work and answer were committed together.") % attempt


def _replayed(told: Material) -> list[Chapter]:
    known, completed = told.replays, told.key.completed_at
    # What was replayed before is of an earlier use of the key. Redis counts whole seconds.
    if known is None or completed is None or known.last < completed.replace(microsecond=0):
        return []
    number = known.number
    text = ngettext(
        "The stored answer was sent again, once; this was when.",
        "The stored answer was sent again %(number)d times; this was the last.",
        number,
    ) % {"number": number}
    if known.first < told.key.created_at.replace(microsecond=0):
        text = _("The stored answer was sent again; this was the last time.")
    return [Chapter(known.last, _("Replayed"), text)]


def _present(key: IdempotencyKey, facts: KeyFacts) -> list[Chapter]:
    if facts.state is State.IN_DOUBT:
        text = _("The reconciling job asks the other side; an operator may settle it as well.")
        return [Chapter(None, _("In doubt"), text, "bad")]
    if facts.state is not State.PROCESSING:
        return []
    if not facts.lease_over:
        return [Chapter(None, _("Running"), _("Attempt %d holds the lease.") % facts.attempt)]
    text = _("The lease of attempt %d is over; nothing has picked the key up yet.") % facts.attempt
    if key.failure:
        last = _("Its last word: %s") % key.failure
        text = f"{text} {last}"
    return [Chapter(key.lease_expires_at, _("Stuck"), text, "warn")]


def _expiry(key: IdempotencyKey, facts: KeyFacts) -> list[Chapter]:
    if key.expires_at is None:
        return []
    if facts.expired:
        return [Chapter(key.expires_at, _("Expired"), _("The key may be used for a new request."))]
    return [Chapter(key.expires_at, _("Expires"), _("From then on the key counts as unused."))]
