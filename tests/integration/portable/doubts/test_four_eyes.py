"""Above a limit nobody decides alone: one proposes, another approves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import IntegrityError, transaction

from idempotency import approvals, doubts, maintenance
from idempotency.approvals import AlreadyProposed, OwnProposal, Person, ProposalOver
from idempotency.core.states import State
from idempotency.doubts import Ending
from idempotency.encryption import Unreadable
from idempotency.enquiry import Contradicted, TooEarly, shown
from idempotency.http.requests import build_policy
from idempotency.models import Choice, EventKind, Proposal, ProposalStatus
from idempotency.operations import PREPARED, Unknown, envelope
from tests.integration.portable.conformance.harness import (
    NOW,
    Key,
    at,
    elsewhere,
    seconds,
    together,
)
from tests.integration.portable.doubts.payouts import (
    BOB,
    MARIA,
    NOTHING,
    PAID,
    REFUSED,
    decide,
    paid,
    says,
    stand,
    stays,
)
from tests.integration.portable.jobs.shipments import Letter, Shipment, named

pytestmark = pytest.mark.django_db

Configure = Callable[..., None]
ANN = Person("ann", "3")


@pytest.fixture
def limit(configure: Configure) -> None:
    configure(FOUR_EYES_ABOVE={"EUR": 1000, "JPY": 50_000}, APPROVE_WITHIN=3600)


def propose(key: Key, choice: Choice = Choice.SUCCEEDED, **told: Any) -> Proposal:
    assert decide(key, choice, **told) is Ending.PROPOSED
    return Proposal.objects.latest("pk")


def approve(proposal: Proposal, person: Person = BOB, **options: Any) -> Ending:
    return doubts.approve(proposal, person=person, reason="I asked as well", **options)


def kinds(key: Key) -> list[str]:
    return [event.kind for event in key.events()]


# When it takes two


@pytest.mark.parametrize(
    ("minor", "currency", "ending"),
    [
        (1000, "EUR", Ending.DONE),
        (1001, "EUR", Ending.PROPOSED),
        (50_000, "JPY", Ending.DONE),
        (50_001, "JPY", Ending.PROPOSED),
        (1, "CHF", Ending.PROPOSED),
    ],
)
@pytest.mark.parametrize("choice", [Choice.SUCCEEDED, Choice.FREE, Choice.FINAL])
def test_the_amount_and_its_currency_decide(
    limit: None, choice: Choice, minor: int, currency: str, ending: Ending
) -> None:
    key = stand(minor=minor, currency=currency)
    before = key.row
    says(PAID)
    assert decide(key, choice) is ending
    assert stays(key, before) is (ending is Ending.PROPOSED)
    assert Proposal.objects.count() == (ending is Ending.PROPOSED)


def test_a_star_is_for_every_other_currency(configure: Configure) -> None:
    configure(FOUR_EYES_ABOVE={"EUR": 0, "*": 500})
    assert not approvals.stake_of(stand("a", minor=500, currency="CHF").row).two_people
    assert approvals.stake_of(stand("b", minor=501, currency="CHF").row).two_people
    assert approvals.stake_of(stand("c", minor=1, currency="EUR").row).two_people


def test_without_the_setting_one_person_decides(configure: Configure) -> None:
    key = stand(minor=10**12)
    says(PAID)
    assert decide(key) is Ending.DONE


def test_what_is_not_about_money_takes_one_person(limit: None) -> None:
    key = named("letter")
    won = key.won()
    kept = envelope(Letter(), {"what": "letter"}, build_policy({}), won)
    key.store.record_recovery_point(won, PREPARED, kept)
    key.store.doubt(won, "?")
    says(PAID, "letter")
    assert decide(key) is Ending.DONE
    running = named("atomic")
    running.won()
    assert decide(running, Choice.FREE) is Ending.DONE


def test_where_the_amount_cannot_be_said_it_takes_two(
    limit: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "idempotency")
    strange, broken = stand("strange"), stand("broken")
    for key, change in ((strange, {"operation": "of.another.release"}), (broken, {"context": {}})):
        row = key.row
        row.context |= change
        row.save()
        assert decide(key, Choice.FINAL) is Ending.PROPOSED
        assert Proposal.objects.get(key_id=row.pk).amount == ""


# Proposing


def test_a_proposal_changes_nothing_and_is_told(limit: None) -> None:
    key = stand(minor=5000)
    before = key.row
    says(PAID)

    proposal = propose(key)

    assert stays(key, before)
    assert paid() == []
    assert (proposal.proposed_by, proposal.proposer_id) == ("maria", "1")
    assert proposal.amount == "5000 EUR (minor units)"
    assert (proposal.choice, proposal.result) == ("succeeded", {"id": "b1"})
    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.PROPOSED, "maria")
    assert event.data == {"proposal": proposal.pk, "choice": "succeeded"}


def test_there_is_one_proposal_at_a_time(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    first = propose(key)
    with pytest.raises(AlreadyProposed) as caught:
        decide(key, Choice.FINAL, person=BOB)
    assert caught.value.proposal == first


@pytest.mark.django_db(transaction=True)
def test_of_two_proposals_at_once_one_is_written(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)

    def one(person: Person) -> bool:
        try:
            return decide(key, person=person) is Ending.PROPOSED
        except AlreadyProposed:
            return False

    assert sorted(together(lambda: one(MARIA), lambda: one(BOB))) == [False, True]
    assert Proposal.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_nothing_is_proposed_about_what_somebody_took_over_meanwhile(limit: None) -> None:
    key = stand(minor=5000, doubt=False, lease=timedelta(0))

    def overtaken() -> Any:
        elsewhere(lambda: key.store.take_over(key.row.pk, seconds(30)))
        return PAID

    Shipment.found["k"] = overtaken
    assert decide(key) is Ending.CHANGED
    assert not Proposal.objects.exists()


def test_one_that_is_over_or_about_another_attempt_makes_way(limit: None) -> None:
    key = stand(minor=5000, doubt=False, lease=timedelta(0))
    says(PAID)
    with at(NOW):
        first = propose(key)
    with at(NOW + seconds(3600)):
        second = propose(key, Choice.FINAL)
    assert key.store.take_over(key.row.pk, timedelta(0)) is not None
    third = propose(key)
    statuses = {it.pk: it.status for it in Proposal.objects.all()}
    assert statuses == {first.pk: "overtaken", second.pk: "overtaken", third.pk: "open"}
    assert Proposal.objects.get(pk=first.pk).result == {}


# Approving


@pytest.mark.parametrize(
    ("choice", "answer", "state"),
    [
        (Choice.SUCCEEDED, PAID, "succeeded"),
        (Choice.REFUSED, REFUSED, "succeeded"),
        (Choice.FREE, PAID, "processing"),
        (Choice.FINAL, PAID, "succeeded"),
    ],
)
def test_another_person_carries_it_out(
    limit: None, choice: Choice, answer: Any, state: str
) -> None:
    key = stand(minor=5000)
    says(answer)
    proposal = propose(key, choice)

    assert approve(proposal) is Ending.DONE

    assert key.row.state == state
    proposal.refresh_from_db()
    assert (proposal.status, proposal.decided_by) == ("approved", "bob")
    assert (proposal.decided_reason, proposal.result) == ("I asked as well", {})
    event = key.events()[-1]
    assert event.actor == "bob"
    assert "proposed by maria; approved: I asked as well" in event.reason


def test_what_was_typed_by_hand_is_what_is_written(limit: None) -> None:
    key = stand(minor=5000)
    says(Unknown("away"))
    assert approve(propose(key, record="b9")) is Ending.DONE
    assert key.responses()[0].body == b'{"id":"b9"}'
    event = key.events()[-1]
    assert (event.data["proposed_by"], event.data["record"]) == ("maria", "b9")


@pytest.mark.parametrize(
    "same", [MARIA, Person("maria", ""), Person("maria", "9"), Person("renamed", "1")]
)
def test_nobody_approves_his_own(limit: None, same: Person) -> None:
    key = stand(minor=5000)
    before = key.row
    says(PAID)
    proposal = propose(key)
    with pytest.raises(OwnProposal):
        approve(proposal, same)
    assert stays(key, before)
    assert approve(proposal, BOB) is Ending.DONE


def test_the_database_too_refuses_ones_own(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    proposal = propose(key)
    with pytest.raises(IntegrityError), transaction.atomic():
        approvals.close(proposal, ProposalStatus.APPROVED, MARIA, "alone", using="default")


def test_it_expires(limit: None) -> None:
    with at(NOW):
        key = stand(minor=5000)
        says(PAID)
        proposal = propose(key)
    with at(NOW + seconds(3600)), pytest.raises(ProposalOver):
        approve(proposal)
    assert key.row.state == State.IN_DOUBT
    with at(NOW + seconds(3599)):
        assert approve(proposal) is Ending.DONE


def test_it_is_about_the_key_as_it_was_seen(limit: None) -> None:
    key = stand(minor=5000, doubt=False, lease=timedelta(0))
    says(PAID)
    proposal = propose(key)
    assert key.store.take_over(key.row.pk, timedelta(0)) is not None
    assert approve(proposal) is Ending.CHANGED
    assert paid() == []
    assert Proposal.objects.get().status == ProposalStatus.OPEN


def test_it_is_carried_out_once(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    proposal = propose(key)
    assert approve(proposal) is Ending.DONE
    with pytest.raises(ProposalOver):
        approve(proposal, ANN)
    assert paid() == ["k"]


@pytest.mark.django_db(transaction=True)
def test_of_two_approvals_at_once_one_counts(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    proposal = propose(key)

    def one(person: Person) -> bool:
        try:
            return approve(proposal, person) is Ending.DONE
        except ProposalOver:
            return False

    assert sorted(together(lambda: one(BOB), lambda: one(ANN))) == [False, True]
    assert paid() == ["k"]
    assert kinds(key).count(EventKind.RESOLVED) == 1


def test_the_other_side_is_asked_once_more(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    proposal = propose(key)
    says(REFUSED)
    with pytest.raises(Contradicted):
        approve(proposal)
    assert key.row.state == State.IN_DOUBT
    says(PAID)
    assert approve(proposal) is Ending.DONE


def test_one_that_was_made_against_the_answer_stands(limit: None) -> None:
    with at(NOW):
        key = stand(minor=5000)
        says(NOTHING)
        with pytest.raises(TooEarly):
            decide(key, Choice.NEVER_HAPPENED)
        assert approve(propose(key, Choice.NEVER_HAPPENED, against=shown(NOTHING))) is Ending.DONE
    assert key.row.state == State.FAILED


def test_what_took_no_knowing_is_not_said_to_be_against_anything(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    assert propose(key, Choice.SUCCEEDED, against=shown(NOTHING)).against == ""


def test_but_not_against_an_answer_that_came_since(limit: None) -> None:
    with at(NOW):
        key = stand(minor=5000)
        says(NOTHING)
        proposal = propose(key, Choice.NEVER_HAPPENED, against=shown(NOTHING))
        says(PAID)
        with pytest.raises(Contradicted):
            approve(proposal)
    assert key.row.state == State.IN_DOUBT


# Rejecting


def test_a_rejected_one_leaves_everything_as_it_was(limit: None) -> None:
    key = stand(minor=5000)
    before = key.row
    says(PAID)
    proposal = propose(key)
    doubts.reject(proposal, person=BOB, reason="wrong charge")
    assert stays(key, before)
    assert kinds(key)[-2:] == [EventKind.PROPOSED, EventKind.REJECTED]
    with pytest.raises(ProposalOver):
        approve(proposal)
    with pytest.raises(ProposalOver):
        doubts.reject(proposal, person=BOB, reason="wrong charge")
    propose(key)


def test_its_proposer_may_take_it_back(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    doubts.reject(propose(key), person=MARIA, reason="my mistake")
    assert Proposal.objects.get().status == ProposalStatus.REJECTED


@pytest.mark.django_db(transaction=True)
def test_one_that_is_rejected_while_it_is_approved_is_not_carried_out(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)
    proposal = propose(key)
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        inside.set()
        assert go_on.wait(30)
        return PAID

    Shipment.found["k"] = slow

    def one() -> bool:
        try:
            return approve(proposal) is Ending.DONE
        except ProposalOver:
            return False

    def other() -> bool:
        assert inside.wait(30)
        doubts.reject(proposal, person=ANN, reason="no")
        go_on.set()
        return True

    assert together(one, other) == [False, True]
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])
    assert EventKind.RESOLVED not in kinds(key)


def test_no_proposal_is_written_without_its_line_in_the_log(limit: None) -> None:
    key = stand(minor=5000)
    says(PAID)

    def full() -> None:
        raise RuntimeError("the log is full")

    with pytest.raises(RuntimeError, match="the log is full"):
        decide(key, also=full)
    assert not Proposal.objects.exists()
    proposal = propose(key)
    for step in (doubts.approve, doubts.reject):
        with pytest.raises(RuntimeError, match="the log is full"):
            step(proposal, person=BOB, reason="fine", also=full)
    assert Proposal.objects.get().status == ProposalStatus.OPEN
    assert key.row.state == State.IN_DOUBT


# What is kept of them


def test_what_the_other_side_answered_is_sealed_and_kept_no_longer_than_needed(
    limit: None, configure: Configure
) -> None:
    configure(ENCRYPTION_KEYS=[Fernet.generate_key().decode()], RETENTION=30 * 24 * 3600)
    with at(NOW):
        key = stand(minor=5000)
        says(PAID)
        proposal = propose(key)
        assert "'b1'" not in str(Proposal.objects.get().result)
        assert approvals.result_of(proposal) == {"id": "b1"}
        maintenance.prune_expired_keys()
        assert approvals.result_of(Proposal.objects.get()) == {"id": "b1"}
    with at(NOW + seconds(3600)):
        maintenance.prune_expired_keys()
        assert Proposal.objects.get().result == {}
    with at(NOW + timedelta(days=30)):
        assert maintenance.prune_expired_keys(dry_run=True).done == 1
        assert maintenance.prune_expired_keys().done == 1
    assert not Proposal.objects.exists()


def test_one_whose_key_of_encryption_is_gone_is_not_carried_out(
    limit: None, configure: Configure
) -> None:
    first, second = (Fernet.generate_key().decode() for _ in range(2))
    key = stand(minor=5000)
    configure(ENCRYPTION_KEYS=[first])
    says(PAID)
    proposal = propose(key)
    configure(ENCRYPTION_KEYS=[second])
    with pytest.raises(Unreadable):
        approve(proposal)
    assert key.row.state == State.IN_DOUBT
    configure(ENCRYPTION_KEYS=[second, first])
    assert approve(proposal) is Ending.DONE
