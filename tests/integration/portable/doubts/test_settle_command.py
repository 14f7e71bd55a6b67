"""`idempotency_settle`: says what it would do, does it when told, and never against what it saw."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from idempotency.core.states import State
from idempotency.models import EventKind, Proposal
from idempotency.operations import Refused, Unknown
from tests.integration.portable.conformance.harness import Key
from tests.integration.portable.doubts.payouts import (
    NOTHING,
    PAID,
    REFUSED,
    Secretive,
    paid,
    says,
    stand,
    stays,
)
from tests.integration.portable.jobs.shipments import Shipment, named

pytestmark = pytest.mark.django_db

SILENT = Unknown("away")


def command(key: Key, choice: str, *options: str, name: str = "settle") -> str:
    row, out = key.row, StringIO()
    how = [f"--{choice}"] if name == "force_fail" else ["--as", choice]
    who = ["--actor", "maria", "--reason", "the bank's support said so"]
    term = f"{row.tenant} {row.key}".split()
    call_command(f"idempotency_{name}", *term, *how, *who, *options, stdout=out)
    return out.getvalue()


def refused(key: Key, choice: str, *options: str, code: int, name: str = "settle") -> str:
    with pytest.raises(CommandError) as caught:
        command(key, choice, *options, name=name)
    assert caught.value.returncode == code
    return str(caught.value)


@pytest.mark.parametrize("choice", ["answered", "succeeded"])
def test_it_asks_and_says_what_it_would_do(choice: str) -> None:
    key = stand(minor=4900)
    before = key.row
    says(PAID)
    said = command(key, choice)
    assert "about 4900 EUR (minor units)" in said
    assert "It has done it, and calls it “b1”." in said
    assert f"It would be settled as {choice}, by maria." in said
    assert f"Repeat with --yes --owner {before.owner} to do it." in said
    assert stays(key, before)
    assert len(Shipment.asked) == 1
    assert [event.kind for event in key.events()] == [EventKind.IN_DOUBT]


@pytest.mark.parametrize(
    ("choice", "answer", "options", "state"),
    [
        ("answered", PAID, [], "succeeded"),
        ("answered", SILENT, [], "in_doubt"),
        ("succeeded", SILENT, ["--their-record", "b7"], "succeeded"),
        ("refused", REFUSED, [], "succeeded"),
        ("never-happened", NOTHING, ["--against", "not_sent:"], "failed"),
    ],
)
def test_with_yes_it_does_it(choice: str, answer: Any, options: list[str], state: str) -> None:
    key = stand()
    says(answer)
    said = json.loads(command(key, choice, "--yes", "--json", *options))
    assert key.row.state == state
    assert said["done"] is (state != "in_doubt")
    assert (said["proposed"], said["choice"]) == (False, choice)
    event = key.events()[-1]
    assert event.actor == "maria"
    assert "the bank's support said so" in event.reason


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_what_the_other_side_contradicts_is_refused(yes: list[str]) -> None:
    key = stand()
    before = key.row
    says(REFUSED)
    why = refused(key, "succeeded", "--their-record", "b1", *yes, code=4)
    assert "The other side says otherwise. It has refused it: “closed”." in why
    assert "--against refused:closed does it so." in why
    assert "a call may still be on its way" in refused_early(key, *yes)
    assert stays(key, before)
    assert "Nothing was written" in why


@pytest.mark.parametrize("code", [" closed ", "c" * 255], ids=["blanks", "long"])
def test_an_answer_is_named_as_it_was_shown(code: str) -> None:
    key = stand()
    says(Refused({"code": code}))
    named = ["--their-record", "b1", "--yes", "--against"]
    refused(key, "succeeded", *named, f"refused:{code}!", code=4)
    command(key, "succeeded", *named, f"refused:{code}")
    assert key.row.state == "succeeded"


def refused_early(key: Key, *options: str) -> str:
    says(NOTHING)
    return refused(key, "never-happened", *options, code=4)


def test_it_asks_for_a_record_where_there_is_none() -> None:
    key, closed = stand(), stand("s", kind=Secretive)
    assert "Say --their-record." in refused(key, "succeeded", code=4)
    assert "the other side's own answer" in refused(
        closed, "succeeded", "--their-record", "b1", code=4
    )


def test_it_is_fenced_by_the_attempt_that_was_shown() -> None:
    key = stand()
    says(PAID)
    assert "changed meanwhile" in refused(
        key, "succeeded", "--yes", "--owner", str(uuid.uuid4()), code=3
    )
    assert paid() == []
    command(key, "succeeded", "--yes", "--owner", str(key.row.owner))
    assert paid() == ["k"]


def test_there_is_nothing_to_settle_without_a_call() -> None:
    atomic, done = named("atomic"), named("done")
    atomic.won()
    done.completed()
    assert "never passed a recovery point" in refused(atomic, "succeeded", code=1)
    assert "nothing to end" in refused(done, "succeeded", code=1)


def test_an_operation_of_another_release_is_said_to_be() -> None:
    key = stand()
    row = key.row
    row.context["operation"] = "of.another.release"
    row.save()
    assert "This process cannot finish it." in refused(key, "succeeded", code=4)


@pytest.mark.parametrize(("name", "choice"), [("settle", "succeeded"), ("force_fail", "final")])
def test_above_the_limit_it_is_proposed(
    configure: Callable[..., None], name: str, choice: str
) -> None:
    configure(FOUR_EYES_ABOVE={"*": 1000})
    key = stand(minor=5000)
    before = key.row
    says(PAID)
    said = json.loads(command(key, choice, "--yes", "--json", name=name))
    assert (said["done"], said["proposed"]) == (False, True)
    assert stays(key, before)
    proposal = Proposal.objects.get()
    assert (proposal.proposed_by, proposal.proposer_id) == ("maria", "")
    assert "There is a proposal already" in refused(key, choice, "--yes", code=4, name=name)
    assert key.row.state == State.IN_DOUBT
