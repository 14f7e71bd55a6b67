"""One round of each race of ``operator_races`` about an operation: an operator against whoever owns
it at that moment. They meet at a barrier right before they write.

Needs Django's settings, a migrated database whose commits others see, and a simulated gateway.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.conf import settings
from django.db import connections
from django.test import override_settings

from idempotency import doubts, maintenance, operators, reconciliation
from idempotency.approvals import OwnProposal, Person, ProposalOver
from idempotency.client.breaker import BreakerPolicy
from idempotency.doubts import Ending
from idempotency.enquiry import Told
from idempotency.models import (
    Choice,
    EventKind,
    IdempotencyKey,
    KeyEvent,
    Proposal,
    StoredResponse,
)
from idempotency.operations import Done, Outcome, Unknown
from idempotency.operators import Seen
from payments import settlement
from payments.gateways.choice import get_gateway
from payments.gateways.http import HttpGateway
from payments.models import Charge, LedgerTransaction
from tests.integration.payments.api import Api, new_api
from tests.plugins.gateway import GatewayProcess

PATIENCE = 60.0
#: Seconds, at most, by which one who was met starts later: a few times what a request takes to
#: write what the gateway answered.
LATE = 0.1
MARIA, BOB, ANN = Person("maria", "1"), Person("bob", "2"), Person("ann", "3")

#: Who won, and every sign of a second truth.
Played = tuple[str, list[str]]


def nobody() -> None:
    """A meeting that is over."""


class Meeting:
    """Holds whoever comes until so many are there; whoever comes later passes."""

    def __init__(self, parties: int, rng: random.Random) -> None:
        self._barrier = threading.Barrier(parties)
        self._lock = threading.Lock()
        self._missing = parties
        self._rng = rng

    def __call__(self) -> None:
        with self._lock:
            late, self._missing = self._missing <= 0, self._missing - 1
            # One of them may be a little late, so that it is not always the same who is first.
            pause = self._rng.choice([0.0, self._rng.uniform(0, LATE)])
        if not late:
            self._barrier.wait(PATIENCE)
            time.sleep(pause)


class RacingGateway(HttpGateway):
    """The gateway's answers arrive, and wait for the others before anybody hears them."""

    meet: ClassVar[Callable[[], None]] = staticmethod(nobody)
    #: It charges, and the answer is lost on its way.
    lose: ClassVar[bool] = False

    def __init__(self, url: str, **options: Any) -> None:
        # A busy machine is slow, which is no reason to leave the gateway alone here.
        super().__init__(url, breaker=BreakerPolicy(minimum_calls=1_000_000), **options)

    def charge(self, **order: Any) -> Outcome:
        outcome = super().charge(**order)
        if not isinstance(outcome, Done):
            raise AssertionError(f"the gateway did not charge: {outcome}")
        if RacingGateway.lose:
            return Unknown("the answer was lost")
        RacingGateway.meet()
        return outcome

    def find_charge(self, *, reference: str, key: str) -> Outcome:
        outcome = super().find_charge(reference=reference, key=key)
        RacingGateway.meet()
        return outcome


@dataclass
class Report:
    """What the rounds of one race came to."""

    name: str
    rounds: int = 0
    #: Who won, and how often.
    won: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        won = ", ".join(f"{who} {count}" for who, count in sorted(self.won.items()))
        return f"{self.name:<22} {self.rounds} rounds ({won}); two truths: {len(self.wrong)}"


@dataclass(frozen=True)
class Stage:
    """Where the rounds are played."""

    gateway: GatewayProcess
    acme: Api
    rng: random.Random

    @classmethod
    def build(cls, gateway: GatewayProcess) -> Stage:
        return cls(gateway, new_api("Acme"), random.Random(1))

    def meet(self, parties: int) -> Meeting:
        """The next so many who hear from the gateway meet."""
        meeting = Meeting(parties, self.rng)
        RacingGateway.meet = staticmethod(meeting)
        return meeting


def play(name: str, race: Callable[[Stage, int], Played], stage: Stage, rounds: int) -> Report:
    """Play a race so many times."""
    report = Report(name)
    gateway = {"BACKEND": f"{__name__}.RacingGateway", "URL": stage.gateway.url, "CALLS": 50}
    # Rounds follow each other faster than one service grants retries. A client who is refused one
    # leaves the key to the job's next run, and then there is no truth yet to look at.
    granted = {"RETRY_BUDGET_RATIO": 1.0, "RETRY_BUDGET_FLOOR": 1_000_000}
    chosen = settings.IDEMPOTENCY | granted | {"RECONCILE_AFTER": 0}
    with override_settings(IDEMPOTENCY=chosen, PAYMENTS_GATEWAY=gateway):
        for number in range(rounds):
            who, wrong = race(stage, number)
            report.rounds += 1
            report.won[who] = report.won.get(who, 0) + 1
            report.wrong += [f"{name} {number}: {what}" for what in wrong]
    return report


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Each in a thread and on a connection of its own; their results in order."""

    def run(work: Callable[[], Any]) -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result(PATIENCE) for future in [threads.submit(run, it) for it in works]]


def unlike(facts: dict[str, tuple[object, object]]) -> list[str]:
    """The facts, found and wanted, that are not as they should be."""
    return [
        f"{what}: {found}, not {wanted}"
        for what, (found, wanted) in facts.items()
        if found != wanted
    ]


# The races


def race_to_settle(stage: Stage, number: int) -> Played:
    """An operator settles what a live request is about to finish."""
    meeting, called, key = stage.meet(2), threading.Event(), uuid.uuid4().hex

    def hear() -> None:
        called.set()
        meeting()

    def operator() -> Ending:
        assert called.wait(PATIENCE)  # past the recovery point, and the gateway has charged
        return _decide(key, Choice.SUCCEEDED)

    RacingGateway.meet = staticmethod(hear)
    answer, ending = at_once(lambda: stage.acme.charge(key=key), operator)
    settled = ending is Ending.DONE
    heard = {"the request was told": (answer.status_code == 201, not settled)}
    wrong = unlike(heard) + _one_truth(stage, key, resolved=int(settled))
    return ("operator" if settled else "request"), wrong


def race_to_force_fail(stage: Stage, number: int) -> Played:
    """An operator ends the attempt of a live request that has charged and is about to say so."""
    meeting, called, key = stage.meet(2), threading.Event(), uuid.uuid4().hex
    choice = Choice.FINAL if number % 2 else Choice.FREE

    def hear() -> None:
        called.set()
        meeting()

    def operator() -> Ending:
        assert called.wait(PATIENCE)
        seen = Seen.of(_row(key))
        meeting()
        return _decide(key, choice, seen)

    RacingGateway.meet = staticmethod(hear)
    answer, ending = at_once(lambda: stage.acme.charge(key=key), operator)
    ended = ending is Ending.DONE
    if ended and choice is Choice.FREE:
        maintenance.resume_operations()  # it is the job's to finish now
    heard = {"the request was told": (answer.status_code == 201, not ended)}
    wrong = unlike(heard) + _one_truth(stage, key, forced=int(ended))
    return (f"operator, {choice.value}" if ended else "request"), wrong


def race_with_the_job(stage: Stage, number: int) -> Played:
    """An operator settles what the job is about to resume, while the client asks again."""
    key = uuid.uuid4().hex
    _lose_the_answer(stage, key)
    RacingGateway.meet = staticmethod(nobody)
    row, begin = _row(key), Meeting(3, stage.rng)
    charge = Charge.objects.get(idempotency_key_id=row.pk)
    known = get_gateway().find_charge(reference=charge.public_id, key="")
    assert isinstance(known, Done)

    def operator() -> bool:
        begin()
        why = {"actor": "maria", "reason": "their support said so"}
        return operators.settle(row.pk, seen=Seen.of(row), outcome=known, **why)

    def begun(work: Callable[[], Any]) -> Any:
        begin()
        return work()

    settled, _, answer = at_once(
        operator,
        lambda: begun(maintenance.resume_operations),
        lambda: begun(lambda: stage.acme.charge(key=key)),
    )
    heard = {"the client was told": (answer.status_code in (201, 409, 503), True)}
    wrong = unlike(heard) + _one_truth(stage, key, resolved=int(settled))
    return ("operator" if settled else "job or client"), wrong


def race_to_approve(stage: Stage, number: int) -> Played:
    """Two people approve one proposal, while the job finds out by itself."""
    two = {"FOUR_EYES_ABOVE": {"*": 0}}
    gateway = settings.PAYMENTS_GATEWAY | {"DEDUPES": False}
    with override_settings(IDEMPOTENCY=settings.IDEMPOTENCY | two, PAYMENTS_GATEWAY=gateway):
        key = uuid.uuid4().hex
        _lose_the_answer(stage, key)
        RacingGateway.meet = staticmethod(nobody)
        assert _decide(key, Choice.SUCCEEDED) is Ending.PROPOSED
        proposal = Proposal.objects.latest("pk")
        stage.meet(3)
        first, second, _ = at_once(
            lambda: _approve(proposal, BOB),
            lambda: _approve(proposal, ANN),
            reconciliation.reconcile_operations,
        )
        approved = [first, second].count("done")
        status = Proposal.objects.values_list("status", flat=True).get(pk=proposal.pk)
        facts = {
            "approved": (approved <= 1, True),
            "the proposal": (status == "approved", bool(approved)),
            "its proposer": (_approve(proposal, MARIA), "OwnProposal"),
        }
        wrong = unlike(facts) + _one_truth(stage, key, resolved=1)
    return ("an approver" if approved else "job"), wrong


def _approve(proposal: Proposal, person: Person) -> str:
    try:
        return doubts.approve(proposal, person=person, reason="I asked as well").value
    except (ProposalOver, OwnProposal) as error:
        return type(error).__name__


def _lose_the_answer(stage: Stage, key: str) -> None:
    RacingGateway.lose = True
    try:
        answer = stage.acme.charge(key=key)
    finally:
        RacingGateway.lose = False
    assert answer.status_code in (409, 503), answer.content


def _row(key: str) -> IdempotencyKey:
    return IdempotencyKey.objects.get(key=key)


def _decide(key: str, choice: Choice, seen: Seen | None = None) -> Ending:
    row = _row(key)
    told = Told(choice, "their support said so")
    return doubts.decide(row.pk, seen=seen or Seen.of(row), told=told, person=MARIA)


# The truth


def _one_truth(stage: Stage, key: str, *, resolved: int = 0, forced: int = 0) -> list[str]:
    """What is wrong: our ledger, the gateway's, the key, its story and what a retry hears must
    tell one and the same."""
    RacingGateway.meet = staticmethod(nobody)
    row = _row(key)
    charge = Charge.objects.get(idempotency_key_id=row.pk)
    entries = stage.gateway.find("charges", charge.public_id)
    moved = [entry for entry in entries if entry["status"] == "succeeded"]
    kept = StoredResponse.objects.filter(key_id=row.pk).first()
    status = kept.status if kept else None
    kinds = list(KeyEvent.objects.filter(key_id=row.pk).values_list("kind", flat=True))
    ended = status == 410
    facts = {
        "the gateway charged": (len(moved), 1),
        "the key": (row.state if kept else f"{row.state}: {row.failure}", "succeeded"),
        "the answer": (status, 410 if ended else 201),
        "a retry hears": (stage.acme.charge(key=key).status_code, status),
        "settled in the story": (kinds.count(EventKind.RESOLVED), resolved),
        "ended in the story": (kinds.count(EventKind.FORCE_FAILED), forced),
        "the charge": (charge.status, "pending" if ended else "succeeded"),
        "the gateway's record": (charge.gateway_reference, "" if ended else moved[0]["id"]),
        "our ledger": (_postings(charge), 0 if ended else 1),
    }
    return unlike(facts) + (_books_decide(charge, moved[0]) if ended else [])


def _books_decide(charge: Charge, entry: dict[str, Any]) -> list[str]:
    """What an operator ended without knowing is booked all the same once the gateway tells."""
    settlement.settle(charge, Done(entry), actor="gateway", reason="it told")
    return unlike({"our ledger, once the gateway told": (_postings(charge), 1)})


def _postings(charge: Charge) -> int:
    return LedgerTransaction.objects.filter(charge=charge).count()
