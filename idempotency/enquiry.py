"""What the other side says now of an operation's call, asked on behalf of a person, and what his
own word is worth beside it."""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from django.db import connections
from django.db.models import Max

from idempotency.conf import settings
from idempotency.core.states import State
from idempotency.definitions import Done, NotSent, Outcome, Refused, Unknown
from idempotency.http.deadlines import Deadline, governing
from idempotency.kept import Kept, age_of
from idempotency.models import EventKind, KeyEvent
from idempotency.proposals import Choice
from idempotency.settling import Finding

__all__ = [
    "WORDS",
    "CannotSettle",
    "Contradicted",
    "Told",
    "TooEarly",
    "ask",
    "find",
    "finding_of",
    "record_of",
    "shown",
    "weigh",
]

#: How an outcome is called where it is kept: in events and in output.
WORDS: dict[type[Outcome], str] = {
    Done: "done",
    Refused: "refused",
    NotSent: "not_sent",
    Unknown: "unknown",
}

_AGREE: dict[Choice, type[Outcome]] = {
    Choice.SUCCEEDED: Done,
    Choice.REFUSED: Refused,
    Choice.NEVER_HAPPENED: NotSent,
}


@dataclass(frozen=True, slots=True)
class Told:
    """How a person says that the call ended: one of the first three choices."""

    choice: Choice
    reason: str
    #: The other side's id of what it did, or the code that it refused with; empty: as it answers.
    record: str = ""
    #: The answer that he was ``shown``, and knows to say otherwise, or to leave open that a call is
    #: still on its way. Another one, which came meanwhile, he does not know.
    against: str = ""


class CannotSettle(Exception):
    """There is nothing to finish the operation with: the other side does not say, and the person
    gave no record, or the operation takes none by hand."""

    def __init__(self, answer: Outcome, *, by_hand: bool) -> None:
        super().__init__(WORDS[type(answer)])
        self.answer, self.by_hand = answer, by_hand


class Contradicted(Exception):
    """The other side says otherwise."""

    def __init__(self, answer: Outcome) -> None:
        super().__init__(WORDS[type(answer)])
        self.answer = answer


class TooEarly(Exception):
    """It cannot be said yet that it never happened: a call may be on its way, for ``left``."""

    def __init__(self, answer: Outcome, left: timedelta) -> None:
        super().__init__(f"too early by {left}")
        self.answer, self.left = answer, left


def ask(kept: Kept) -> Outcome:
    """Ask the other side, by ``look_up``, for ``LOOK_UP_TIMEOUT`` at most. Moves nothing.

    It runs in a thread of its own, so that a look-up without bounds holds nobody up; what it says
    later is lost. A deadline tells those that care how long they have.
    """
    patience = settings().look_up_timeout.total_seconds()
    answers: SimpleQueue[Outcome] = SimpleQueue()

    def look() -> None:
        try:
            with governing(Deadline.after(patience)):
                answers.put(kept.look_up())
        finally:
            connections.close_all()

    Thread(target=copy_context().run, args=(look,), name="idempotency-look-up", daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except Empty:
        return Unknown(f"no answer within {patience:g} s")


def find(kept: Kept, told: Told, answer: Outcome, key: Any) -> Finding:
    """What the operation is to be settled as, given what a person was told, what the other side
    answers, and how the key stood at its ``now``.

    Raises ``CannotSettle`` when neither says what ``finalize`` needs, and what ``weigh`` raises
    unless he says that he knows this answer.
    """
    result = _by_hand(kept, told.choice, told.record) if told.record else None
    if told.against != shown(answer):
        weigh(kept, told.choice, result, answer, key)
    if result is None and isinstance(answer, (Done, Refused)) and _agrees(told.choice, answer):
        result = answer.result
    if result is None and told.choice is not Choice.NEVER_HAPPENED:
        by_hand = _by_hand(kept, told.choice, "?") is not None
        raise CannotSettle(answer, by_hand=by_hand)
    return finding_of(told.choice, result or {}, told.reason)


def record_of(outcome: Outcome) -> str:
    """What the other side calls what it did, or the code it refused with: ``id`` or ``code`` of its
    answer. Empty where it has neither."""
    if not isinstance(outcome, (Done, Refused)):
        return ""
    name = "id" if isinstance(outcome, Done) else "code"
    return str(outcome.result.get(name, ""))[:255]


def shown(outcome: Outcome) -> str:
    """An answer as whoever decides against it names it: ``done:ch_1``, ``not_sent:``."""
    return f"{WORDS[type(outcome)]}:{record_of(outcome)}"


def finding_of(choice: Choice, result: dict[str, Any], reason: str) -> Finding:
    """A choice, and the result that goes with it, as what settles an operation."""
    if choice is Choice.NEVER_HAPPENED:
        return NotSent(reason)
    return Done(result) if choice is Choice.SUCCEEDED else Refused(result)


def weigh(
    kept: Kept, choice: Choice, result: dict[str, Any] | None, answer: Outcome, key: Any
) -> None:
    """Raise ``Contradicted`` when the other side says that it ended otherwise, or under another
    record; and ``TooEarly`` when a call may still arrive after it was settled as never sent."""
    if not isinstance(answer, Unknown) and not _agrees(choice, answer):
        raise Contradicted(answer)
    if result is not None and isinstance(answer, (Done, Refused)):
        said = answer.result
        if any(said.get(name, value) != value for name, value in result.items()):
            raise Contradicted(answer)
    if choice is Choice.NEVER_HAPPENED:
        left = kept.arrives_for(age_of(key, key.now), _rested(key))
        if left > timedelta(0):
            raise TooEarly(answer, left)


def _rested(key: Any) -> timedelta:
    """How long the last attempt is over, at least: its lease was, or the doubt began after it."""
    if key.state == State.PROCESSING:
        rested: timedelta = key.now - key.lease_expires_at
        return rested
    events = KeyEvent.objects.using(key._state.db).filter(key_id=key.pk, kind=EventKind.IN_DOUBT)
    since = events.aggregate(since=Max("at"))["since"]
    # An event goes with its day, once that is older than the retention.
    return settings().retention if since is None else key.now - since


def _by_hand(kept: Kept, choice: Choice, record: str) -> dict[str, Any] | None:
    if choice is Choice.NEVER_HAPPENED:
        return None
    done = choice is Choice.SUCCEEDED
    return kept.operation.result_by_hand(kept.context, done=done, record=record)


def _agrees(choice: Choice, answer: Outcome) -> bool:
    return isinstance(answer, _AGREE[choice])
