"""What needs a person's decision, and carrying one out: the service behind the admin's queue and
the command.

::

    queue       what is in doubt, or open for longer than RECONCILE_ALERT_AFTER; the oldest first
    ask         what the other side says now; written to the story, and nothing else
    ask_again   what the reconciliation job would do, now and by name
    decide      settle or force-fail, or propose it where one person may not decide alone
    approve     carry out what another person proposed; reject: do not

Each rests on how the key stood when the person looked (``Seen``). A worker, a job or another person
that was faster is never overruled: then nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest

from idempotency import approvals, enquiry, operators, reconciliation
from idempotency.approvals import Person, seen_of, stake_of
from idempotency.conf import settings
from idempotency.core.states import State
from idempotency.definitions import Done, Outcome, Refused
from idempotency.enquiry import WORDS, Told, record_of
from idempotency.kept import Kept
from idempotency.models import Choice, EventKind, IdempotencyKey, Proposal, ProposalStatus
from idempotency.operators import Seen
from idempotency.settling import Finding
from idempotency.stores import clock, get_store
from idempotency.stores.base import Unsettled

__all__ = ["Asked", "Ending", "Place", "approve", "ask", "ask_again", "decide", "queue", "reject"]

#: Written in the transaction of the decision, or not at all: the line in the admin's log.
Also = Callable[[], None]

#: How a key of the queue is found again: its recovery point's time, and its number.
Place = tuple[datetime, int]

_FORCED = (Choice.FREE, Choice.FINAL)


class Ending(Enum):
    """What came of a decision."""

    DONE = "done"
    #: It is about more money than one person decides about: another one has to approve.
    PROPOSED = "proposed"
    #: The key does not stand as it was seen any more, or somebody is at it. Nothing was written.
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the other side answered, and what followed."""

    answer: Outcome
    #: "done", "refused", "not_sent" or "resumed"; None: nothing does yet.
    ending: str | None = None


def queue(using: str, *, after: Place | None = None, limit: int) -> list[Any]:
    """Up to ``limit`` keys that need a decision, the oldest first, each with the database's ``now``
    beside it. One walk of the index of open operations."""
    late = Q(recovery_point_at__lte=clock.after(-settings().reconcile_alert_after))
    open_keys = IdempotencyKey.objects.using(using).filter(
        Q(state=State.IN_DOUBT.value) | late,
        state__in=[State.PROCESSING.value, State.IN_DOUBT.value],
        recovery_point_at__isnull=False,
    )
    if after is not None:
        at, key_id = after
        # The first condition is implied; it tells the index where to begin.
        beyond = Q(recovery_point_at__gt=at) | Q(recovery_point_at=at, pk__gt=key_id)
        open_keys = open_keys.filter(beyond, recovery_point_at__gte=at)
    rows = open_keys.exclude(recovery_point="").annotate(now=clock.now())
    return list(rows.order_by("recovery_point_at", "pk")[:limit])


def ask(
    key_id: int, *, seen: Seen, person: Person, also: Also | None = None, using: str | None = None
) -> Asked | None:
    """What the other side says now, for at most ``LOOK_UP_TIMEOUT``. The story tells who asked.

    None when the key does not stand as it was seen. Raises ``ImproperlyConfigured`` where the
    operation is not known here.
    """
    key = _operation_as_seen(get_store(using).using, key_id, seen)
    if key is None:
        return None
    answer = enquiry.ask(Kept.read(key.context))
    _note_answer(key, answer, person, "", also)
    return Asked(answer)


def ask_again(
    key_id: int,
    *,
    seen: Seen,
    person: Person,
    reason: str,
    also: Also | None = None,
    using: str | None = None,
) -> Asked | None:
    """Ask, and do what follows from the answer, as the reconciliation job would in its time: settle
    as the other side says, or let the call be made again where that is safe.

    That needs one person, whatever the amount: it is the other side's word. None and raises like
    ``ask``.
    """
    store = get_store(using)
    key = _operation_as_seen(store.using, key_id, seen)
    if key is None:
        return None
    kept = Kept.read(key.context)
    answer = enquiry.ask(kept)
    unsettled = Unsettled(
        key_id=key.pk,
        seen=seen,
        digest=bytes(key.digest),
        context=key.context,
        recovery_point_at=key.recovery_point_at,
        look_up_at=key.look_up_at,
        now=key.now,
    )
    ending = reconciliation.settle_as_answered(
        store, unsettled, kept, answer, actor=person.name, because=reason, also=also
    )
    if ending is None:
        if isinstance(answer, (Done, Refused)):
            return None  # somebody was faster
        _note_answer(key, answer, person, reason, also)
    return Asked(answer, ending)


def decide(
    key_id: int,
    *,
    seen: Seen,
    told: Told,
    person: Person,
    also: Also | None = None,
    request: HttpRequest | None = None,
    using: str | None = None,
) -> Ending:
    """Settle or force-fail as a person says; propose it where that takes two.

    Before it settles it asks the other side, and raises what ``enquiry.find`` raises when that does
    not fit. Raises ``AlreadyProposed``, and what ``operators.settle`` raises. ``request`` only
    helps to spell the URL of the problem's page.
    """
    alias = get_store(using).using
    forced = told.choice in _FORCED
    key = (_as_seen if forced else _operation_as_seen)(alias, key_id, seen)
    if key is None:
        return Ending.CHANGED
    finding, data = None, dict[str, Any]()
    if not forced:
        kept = Kept.read(key.context)
        answer = enquiry.ask(kept)
        finding = enquiry.find(kept, told, answer, key)
        data = _data(finding, answer, by_hand=bool(told.record))
        if told.against != enquiry.shown(answer):
            told = replace(told, against="")  # it took no knowing
    if stake_of(key).two_people:
        return _propose(key, seen, told, finding, person, also)
    act = _Act(key_id, seen, told.choice, finding, request, alias)
    done = act.carry_out(person.name, told.reason, data, also)
    return Ending.DONE if done else Ending.CHANGED


def approve(
    proposal: Proposal,
    *,
    person: Person,
    reason: str,
    also: Also | None = None,
    request: HttpRequest | None = None,
) -> Ending:
    """Carry out what another person proposed, if the key still stands as he saw it.

    Asks the other side once more, and raises ``Contradicted`` or ``TooEarly`` unless it was
    proposed knowing this answer. Raises ``OwnProposal`` and ``ProposalOver``, and like ``decide``.
    """
    using: str = proposal._state.db or "default"
    approvals.demand_another(proposal, person)
    if not approvals.open_proposals(using).filter(pk=proposal.pk).exists():
        raise approvals.ProposalOver
    seen, choice = seen_of(proposal), Choice(proposal.choice)
    key = _as_seen(using, proposal.key_id, seen)
    if key is None:
        return Ending.CHANGED
    finding, data = None, {"proposed_by": proposal.proposed_by, "proposal": proposal.pk}
    if choice not in _FORCED:
        kept, result = Kept.read(key.context), approvals.result_of(proposal)
        answer = enquiry.ask(kept)
        if proposal.against != enquiry.shown(answer):
            enquiry.weigh(kept, choice, result or None, answer, key)
        finding = enquiry.finding_of(choice, result, proposal.reason)
        data |= _data(finding, answer)

    def close() -> None:
        approvals.close(proposal, ProposalStatus.APPROVED, person, reason, using=using)
        if also is not None:
            also()

    why = f"{proposal.reason} (proposed by {proposal.proposed_by}; approved: {reason})"
    act = _Act(proposal.key_id, seen, choice, finding, request, using)
    return Ending.DONE if act.carry_out(person.name, why, data, close) else Ending.CHANGED


def reject(proposal: Proposal, *, person: Person, reason: str, also: Also | None = None) -> None:
    """End a proposal without effect; its proposer may do that too. Raises ``ProposalOver``."""
    using: str = proposal._state.db or "default"
    with transaction.atomic(using=using):
        approvals.close(proposal, ProposalStatus.REJECTED, person, reason, using=using)
        _note(using, proposal.key_id, EventKind.REJECTED, person, reason, proposal=proposal.pk)
        if also is not None:
            also()


@dataclass(frozen=True, slots=True)
class _Act:
    """What is to be done to a key as it was seen."""

    key_id: int
    seen: Seen
    choice: Choice
    finding: Finding | None
    request: HttpRequest | None
    using: str

    def carry_out(self, actor: str, reason: str, data: dict[str, Any], also: Also | None) -> bool:
        if self.finding is not None:
            return operators.settle(
                self.key_id,
                seen=self.seen,
                outcome=self.finding,
                actor=actor,
                reason=reason,
                data=data,
                also=also,
                using=self.using,
            )
        with transaction.atomic(using=self.using):
            ended = operators.force_fail(
                self.key_id,
                seen=self.seen,
                actor=actor,
                reason=reason,
                final=self.choice is Choice.FINAL,
                request=self.request,
                using=self.using,
            )
            if ended and also is not None:
                also()
        return ended


def _propose(
    key: Any, seen: Seen, told: Told, finding: Finding | None, person: Person, also: Also | None
) -> Ending:
    using: str = key._state.db
    result = finding.result if isinstance(finding, (Done, Refused)) else {}
    with transaction.atomic(using=using):
        if not operators.stands_as(seen, key.pk, using):
            return Ending.CHANGED
        proposal = approvals.propose(
            key,
            seen,
            told.choice,
            result=result,
            against=told.against,
            reason=told.reason,
            person=person,
        )
        about = {"proposal": proposal.pk, "choice": str(told.choice)}
        _note(using, key.pk, EventKind.PROPOSED, person, told.reason, **about)
        if also is not None:
            also()
    return Ending.PROPOSED


def _as_seen(using: str, key_id: int, seen: Seen) -> Any:
    """The key with the database's ``now``; None when it does not stand as it was seen."""
    keys = IdempotencyKey.objects.using(using).annotate(now=clock.now())
    key = keys.filter(pk=key_id, state__in=[State.PROCESSING.value, State.IN_DOUBT.value]).first()
    return key if key is not None and Seen.of(key) == seen else None


def _operation_as_seen(using: str, key_id: int, seen: Seen) -> Any:
    """The same for an operation past its recovery point: nothing else can be asked about."""
    key = _as_seen(using, key_id, seen)
    return key if key is not None and key.recovery_point and key.context else None


def _data(finding: Finding, answer: Outcome, **more: Any) -> dict[str, Any]:
    """What the story keeps of a settlement: the record that was written, and what the other side
    said. Not the whole answer, which may hold personal data."""
    return more | {"record": record_of(finding), "answered": WORDS[type(answer)]}


def _note_answer(key: Any, answer: Outcome, person: Person, reason: str, also: Also | None) -> None:
    about = {
        "answer": WORDS[type(answer)],
        "record": record_of(answer),
        "because": "" if isinstance(answer, (Done, Refused)) else answer.reason[:500],
        "owner": str(key.owner),
    }
    with transaction.atomic(using=key._state.db):
        _note(key._state.db, key.pk, EventKind.ASKED, person, reason, **about)
        if also is not None:
            also()


def _note(
    using: str, key_id: int, kind: EventKind, person: Person, reason: str, **data: Any
) -> None:
    """A line of the story; none where the key was pruned."""
    keys = IdempotencyKey.objects.using(using).filter(pk=key_id)
    attempt = keys.values_list("attempt", flat=True).first()
    if attempt is not None:
        get_store(using).note(key_id, kind, attempt, actor=person.name, reason=reason, data=data)
