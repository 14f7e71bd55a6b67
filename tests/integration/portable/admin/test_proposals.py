"""Proposals in the admin: who approves, what he gets to see, and what he cannot do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError
from django.test import Client

from idempotency import doubts
from idempotency.admin import ProposalAdmin
from idempotency.approvals import Person
from idempotency.core.states import State
from idempotency.enquiry import Told
from idempotency.models import Choice, Proposal, ProposalStatus
from idempotency.operators import Seen
from tests.integration.portable.conformance.harness import NOW, Key, at, seconds
from tests.integration.portable.doubts.payouts import PAID, REFUSED, paid, says, stand, stays
from tests.integration.portable.jobs.shipments import Shipment

pytestmark = pytest.mark.django_db

LIST = "/admin/idempotency/proposal/"
Staff = Callable[..., Client]
VIEW, APPROVE = "view_proposal", "approve_proposal"


@pytest.fixture(autouse=True)
def limit(configure: Callable[..., None]) -> None:
    for memory in (Shipment.answers, Shipment.keys, Shipment.found, Shipment.asked):
        memory.clear()
    configure(FOUR_EYES_ABOVE={"*": 1000}, APPROVE_WITHIN=3600)


@pytest.fixture
def approver(staff: Staff) -> Client:
    return staff(APPROVE, "view_idempotencykey", name="bob")


def proposed(key: Key, choice: Choice = Choice.SUCCEEDED, **told: Any) -> Proposal:
    row = key.row
    told = {"reason": "they told me"} | told
    doubts.decide(row.pk, seen=Seen.of(row), told=Told(choice, **told), person=Person("maria"))
    return Proposal.objects.latest("pk")


@pytest.fixture
def key() -> Key:
    made = stand(minor=5000)
    says(PAID)
    return made


def page_of(proposal: Proposal) -> str:
    return f"{LIST}{proposal.pk}/change/"


def text_of(client: Client, path: str) -> str:
    main = client.get(path).content.decode().split("<main")[1].split("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def take(client: Client, proposal: Proposal, step: str, reason: str = "I asked as well") -> Any:
    return client.post(page_of(proposal), {"step": step, "reason": reason})


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


@pytest.mark.parametrize(
    ("permissions", "step", "status"),
    [
        ([], "approve", 403),
        ([VIEW], "approve", 403),
        ([VIEW], "reject", 403),
        (["view_idempotencykey", "settle_idempotencykey"], "approve", 403),
        ([VIEW, "change_proposal", "delete_proposal"], "approve", 403),
        ([APPROVE], "approve", 302),
        ([APPROVE], "reject", 302),
        ([APPROVE], "delete", 403),
    ],
)
def test_approving_takes_its_own_permission(
    staff: Staff, key: Key, permissions: list[str], step: str, status: int
) -> None:
    proposal, before = proposed(key), key.row
    client = staff(*permissions, name="bob")
    assert take(client, proposal, step).status_code == status
    assert stays(key, before) is not (step == "approve" and status == 302)
    assert LogEntry.objects.exists() is (status == 302)


def test_another_person_sees_what_will_be_written_and_approves(approver: Client, key: Key) -> None:
    proposal = proposed(key)
    page = text_of(approver, page_of(proposal))
    assert "Succeeded · 5000 EUR (minor units)" in page
    assert "as if its call had answered so" in page
    assert "The other side's record, to be written: b1" in page
    assert "Proposed by maria" in page
    assert "they told me" in page

    answer = take(approver, proposal, "approve")

    assert said(answer) == "Approved and carried out."
    assert (key.row.state, paid()) == (State.SUCCEEDED, ["k"])
    page = text_of(approver, answer["Location"])
    assert "approved and carried out" in page
    assert "I asked as well" in page
    entries = LogEntry.objects.order_by("pk").values_list("change_message", flat=True)
    assert list(entries) == [
        "Approved (succeeded): I asked as well",
        f"Proposal {proposal.pk}: Approved (succeeded): I asked as well",
    ]
    assert "approved: I asked as well" in key.events()[-1].reason


def test_nobody_is_offered_his_own(staff: Staff, key: Key) -> None:
    proposal, before = proposed(key), key.row
    maria = staff(APPROVE, "view_idempotencykey", name="maria")
    page = maria.get(page_of(proposal)).content.decode()
    assert "another person has to approve" in page
    assert 'value="approve"' not in page
    assert "Nobody approves his own proposal" in said(take(maria, proposal, "approve"))
    assert stays(key, before)


def test_its_proposer_may_take_it_back_without_the_permission(staff: Staff, key: Key) -> None:
    proposal = proposed(key)
    maria = staff(VIEW, name="maria")
    assert "Take it back" in maria.get(page_of(proposal)).content.decode()
    assert take(maria, proposal, "approve").status_code == 403
    assert said(take(maria, proposal, "reject")) == "Rejected. Nothing was settled."
    assert Proposal.objects.get().status == ProposalStatus.REJECTED


def test_a_rejected_one_is_not_carried_out(approver: Client, key: Key) -> None:
    proposal, before = proposed(key), key.row
    assert said(take(approver, proposal, "reject", "wrong charge")) == (
        "Rejected. Nothing was settled."
    )
    assert stays(key, before)
    page = approver.get(page_of(proposal)).content.decode()
    assert "wrong charge" in page
    assert 'name="step"' not in page
    assert "The proposal is over" in said(take(approver, proposal, "approve"))
    assert "The proposal is over" in said(take(approver, proposal, "reject"))


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
@pytest.mark.parametrize("step", ["approve", "reject"])
def test_a_reason_is_demanded(approver: Client, key: Key, step: str, reason: str) -> None:
    proposal, before = proposed(key), key.row
    answer = take(approver, proposal, step, reason)
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert stays(key, before)
    assert Proposal.objects.get().status == ProposalStatus.OPEN


def test_one_that_expired_is_not_offered(approver: Client) -> None:
    with at(NOW):
        key = stand(minor=5000)
        says(PAID)
        proposal = proposed(key)
    with at(NOW + seconds(3600)):
        page = approver.get(page_of(proposal)).content.decode()
        assert 'name="step"' not in page
        assert "expired" in page
        assert "The proposal is over" in said(take(approver, proposal, "approve"))
    assert key.row.state == State.IN_DOUBT


def test_one_about_a_key_that_changed_can_only_be_rejected(approver: Client) -> None:
    key = stand(minor=5000, doubt=False, lease=timedelta(0))
    says(PAID)
    proposal = proposed(key)
    assert key.store.take_over(key.row.pk, timedelta(0)) is not None
    page = approver.get(page_of(proposal)).content.decode()
    assert "The key has changed since it was proposed" in page
    assert 'value="approve"' not in page
    assert "The key changed since it was proposed." in said(take(approver, proposal, "approve"))
    assert paid() == []
    take(approver, proposal, "reject")
    assert Proposal.objects.get().status == ProposalStatus.REJECTED


def test_what_the_other_side_says_by_then_counts(approver: Client, key: Key) -> None:
    proposal, before = proposed(key), key.row
    says(REFUSED)
    assert "the other side says otherwise" in said(take(approver, proposal, "approve"))
    assert stays(key, before)


def test_one_that_was_made_against_the_answer_says_so(approver: Client, key: Key) -> None:
    says(REFUSED)
    proposal = proposed(key, record="b1", against="refused:closed")
    assert "although the other side said otherwise" in text_of(approver, page_of(proposal))
    assert said(take(approver, proposal, "approve")) == "Approved and carried out."


def test_a_force_fail_is_approved_as_well(approver: Client, key: Key) -> None:
    proposal = proposed(key, Choice.FINAL)
    assert "Every retry gets 410 force_failed" in text_of(approver, page_of(proposal))
    take(approver, proposal, "approve")
    assert key.responses()[0].status == 410


def test_nothing_is_approved_without_its_line_in_the_admin_log(
    approver: Client, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OperationalError("the log is full")

    monkeypatch.setattr(ProposalAdmin, "log_change", fail)
    proposal = proposed(key)
    assert "The database did not answer in time" in said(take(approver, proposal, "approve"))
    assert "The database did not answer in time" in said(take(approver, proposal, "reject"))
    assert (key.row.state, paid()) == (State.IN_DOUBT, [])
    assert Proposal.objects.get().status == ProposalStatus.OPEN


def test_the_list_shows_them_and_finds_those_of_a_key(approver: Client, key: Key) -> None:
    proposal = proposed(key)
    for query in ("", f"?q={key.row.pk}", "?status__exact=open"):
        page = text_of(approver, LIST + query)
        assert "waits for another person" in page
        assert "maria" in page
    assert "Nothing to show" in text_of(approver, f"{LIST}?q=x")
    take(approver, proposal, "reject")
    assert "Nothing to show" in text_of(approver, f"{LIST}?status__exact=open")


def test_nothing_else_can_be_done_to_them(root: Client, key: Key) -> None:
    proposal = proposed(key)
    for path in ("add/", f"{proposal.pk}/delete/", f"{proposal.pk}/history/"):
        assert root.get(LIST + path).status_code in (403, 404, 302)
    assert Proposal.objects.get() == proposal
