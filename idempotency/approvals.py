"""Four eyes: above a limit nobody ends an operation alone. One person proposes, another approves.

The limit is on the amount that ``Operation.amount_of`` says, in ``FOUR_EYES_ABOVE``. Where it
cannot be said (the operation is not known here, or the hook fails) it counts as above. Asking the
other side and settling as it answers needs one person only: the job does the same without any.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from idempotency import encryption
from idempotency.conf import settings
from idempotency.definitions import Amount, find_known
from idempotency.kept import context_of
from idempotency.models import Choice, IdempotencyKey, Proposal, ProposalStatus
from idempotency.stores import clock
from idempotency.stores.base import Seen

__all__ = [
    "AlreadyProposed",
    "OwnProposal",
    "Person",
    "ProposalOver",
    "Stake",
    "close",
    "demand_another",
    "open_proposals",
    "propose",
    "result_of",
    "seen_of",
    "stake_of",
]

logger = logging.getLogger("idempotency")


@dataclass(frozen=True, slots=True)
class Person:
    """Who decides. ``id``: of the user, which a new name does not change; empty from a command."""

    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Stake:
    """What an operation is about, and whether ending it takes two people."""

    amount: Amount | None
    two_people: bool

    def __str__(self) -> str:
        return "" if self.amount is None else str(self.amount)


class AlreadyProposed(Exception):
    """Somebody has proposed something for the key as it stands: approve or reject that first."""

    def __init__(self, proposal: Proposal | None) -> None:
        super().__init__("already proposed")
        self.proposal = proposal


class OwnProposal(Exception):
    """The proposal is the approver's own."""


class ProposalOver(Exception):
    """The proposal was decided, was overtaken, or has expired."""


def stake_of(key: IdempotencyKey) -> Stake:
    """What is at stake with an open key. Work inside this database is rolled back: nothing is."""
    if not key.recovery_point:
        return Stake(None, two_people=False)
    limits = settings().four_eyes_above
    try:
        kept: Any = key.context or {}
        amount = find_known(str(kept.get("operation")))().amount_of(context_of(kept))
    except Exception:
        logger.warning("cannot say what key %s is about", key.pk, exc_info=True)
        return Stake(None, two_people=limits is not None)
    if amount is None or limits is None:
        return Stake(amount, two_people=False)
    known = dict(limits)
    limit = known.get(amount.currency, known.get("*", 0))
    return Stake(amount, two_people=amount.minor > limit)


def seen_of(proposal: Proposal) -> Seen:
    """How the key stood when it was proposed."""
    return Seen(proposal.owner, proposal.state, proposal.recovery_point)


def open_proposals(using: str, key_ids: Iterable[int] | None = None) -> QuerySet[Proposal]:
    """Those that can still be approved, the oldest first, whether their key stands as seen or
    not."""
    waiting = Proposal.objects.using(using).filter(
        status=ProposalStatus.OPEN, expires_at__gt=clock.now()
    )
    if key_ids is not None:
        waiting = waiting.filter(key_id__in=list(key_ids))
    return waiting.order_by("created_at", "pk")


def propose(
    key: IdempotencyKey,
    seen: Seen,
    choice: Choice,
    *,
    result: dict[str, Any],
    against: str,
    reason: str,
    person: Person,
) -> Proposal:
    """Write a proposal, in the transaction that holds the key as it was seen.

    One that is over, or about a key that has changed since, makes way. Raises ``AlreadyProposed``.
    """
    using: str = key._state.db or "default"
    before = Proposal.objects.using(using).filter(key_id=key.pk, status=ProposalStatus.OPEN)
    standing = open_proposals(using, [key.pk]).filter(
        owner=seen.owner, state=seen.state, recovery_point=seen.recovery_point
    )
    if (other := standing.first()) is not None:
        raise AlreadyProposed(other)
    before.update(status=ProposalStatus.OVERTAKEN, decided_at=clock.now(), result={})
    proposal = Proposal(
        key_id=key.pk,
        owner=seen.owner,
        state=seen.state,
        recovery_point=seen.recovery_point,
        choice=choice,
        result=encryption.seal_json(result),
        against=against,
        amount=str(stake_of(key))[:100],
        reason=reason,
        proposed_by=person.name[:150],
        proposer_id=person.id,
        created_at=clock.now(),
        expires_at=clock.after(settings().approve_within),
    )
    try:
        with transaction.atomic(using=using):
            proposal.save(using=using, force_insert=True)
    except IntegrityError as error:
        # Two at the same moment; the other one is not visible to this transaction yet.
        raise AlreadyProposed(None) from error
    return proposal


def result_of(proposal: Proposal) -> dict[str, Any]:
    """What is to be written as the other side's answer; empty once it was decided. Raises
    ``encryption.Unreadable``."""
    result: dict[str, Any] = encryption.open_json(proposal.result)
    return result


def demand_another(proposal: Proposal, person: Person) -> None:
    """Raise ``OwnProposal`` when the person who is to approve is the one who proposed."""
    same_user = bool(person.id) and person.id == proposal.proposer_id
    if same_user or person.name == proposal.proposed_by:
        raise OwnProposal


def close(
    proposal: Proposal, status: ProposalStatus, person: Person, reason: str, *, using: str
) -> None:
    """End an open proposal. Raises ``ProposalOver`` when it is none any more."""
    waiting = open_proposals(using).filter(pk=proposal.pk).order_by()
    if not waiting.update(
        status=status,
        decided_by=person.name[:150],
        decided_at=clock.now(),
        decided_reason=reason[:500],
        # It may hold personal data, and is not needed any more.
        result={},
    ):
        raise ProposalOver
