"""Reconciliation: what the other side says, what follows from it, and when somebody is called."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import Group
from prometheus_client import REGISTRY

from idempotency import maintenance, reconciliation
from idempotency.core.decisions import Busy, InDoubt, Replay
from idempotency.core.states import State
from idempotency.http.requests import build_policy
from idempotency.models import EventKind
from idempotency.operations import PREPARED, Outcome, Refused, envelope
from idempotency.reconciliation import JOB, reconcile_operations
from tests.integration.portable.conformance.harness import LEASE, NOW, Key, at, elsewhere, seconds
from tests.integration.portable.jobs.shipments import (
    SHIPPED,
    Letter,
    Parcel,
    Shipment,
    abandoned,
    away,
    carried,
    in_doubt,
    named,
    not_there,
    refused,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

AFTER, ALERT, WITHDRAW = seconds(60), seconds(900), seconds(3600)


def reconcile(after: timedelta = AFTER) -> Any:
    """One run of the job, that long after the recovery points."""
    with at(NOW + after):
        return reconcile_operations()


def groups() -> list[str]:
    return list(Group.objects.values_list("name", flat=True))


# What the other side did, or refused


@pytest.mark.parametrize("stand", [in_doubt, abandoned])
@pytest.mark.parametrize("kind", [Letter, Shipment])
def test_what_the_other_side_did_is_finished_without_doing_it_again(
    stand: Callable[..., Key], kind: type[Shipment]
) -> None:
    key = stand(kind=kind)
    Shipment.found["k"] = carried

    result = reconcile()

    assert (result.done, result.failed) == (1, 0)
    with at(NOW + AFTER):
        assert key.claim() == Replay(SHIPPED)
    assert groups() == ["k"]
    assert (len(Shipment.asked), Shipment.keys) == (1, [])
    assert reconcile().done == 0


def test_it_is_asked_about_under_the_key_of_the_call() -> None:
    abandoned()
    Shipment.answers["k"] = away
    maintenance.resume_operations()

    reconcile()

    assert Shipment.asked == Shipment.keys


def test_what_the_other_side_refused_is_answered_so() -> None:
    key = in_doubt()
    Shipment.found["k"] = refused

    reconcile()

    assert key.responses()[0].status == 402
    assert key.row.state == State.SUCCEEDED


def test_the_story_says_who_settled_it_and_why() -> None:
    key = in_doubt()
    owner = str(key.row.owner)
    Shipment.found["k"] = carried

    reconcile()

    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.RESOLVED, JOB)
    assert event.reason == "carrier was asked, and has done it"
    assert event.data == {"from": owner, "was": "in_doubt", "outcome": "done"}


def test_it_is_left_alone_before_its_time_and_while_somebody_is_at_it() -> None:
    in_doubt("young")
    abandoned("held", lease=120)
    Shipment.found |= {"young": carried, "held": carried}

    assert reconcile(AFTER - seconds(1)).done == 0
    assert Shipment.asked == []
    assert reconcile().done == 1
    assert groups() == ["young"]


# What the other side does not have


def test_what_it_does_not_have_and_would_dedupe_is_left_to_the_job_that_calls_again() -> None:
    key = abandoned()
    Shipment.found["k"] = not_there

    assert reconcile().done == 0

    assert key.row.state == State.PROCESSING
    assert Shipment.keys == []
    with at(NOW + AFTER):
        assert maintenance.resume_operations().done == 1
    assert len(Shipment.keys) == 1


def test_an_operation_that_cannot_be_finalized_is_given_up_though_it_is_asked_about(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.IDEMPOTENCY = {"RESUME_ATTEMPTS": 3}

    def broken(*_: Any) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Shipment, "finalize", broken)
    key = abandoned()
    Shipment.found["k"] = carried
    for hour in range(1, 5):
        assert reconcile(hour * seconds(3600)).failed == 1
        with at(NOW + hour * seconds(3600) + seconds(1800)):
            maintenance.resume_operations()
    assert key.row.state == State.IN_DOUBT


def test_a_doubt_about_what_would_be_deduped_ends_in_another_call(settings: Any) -> None:
    settings.IDEMPOTENCY = {"RESUME_ATTEMPTS": 1}
    key = abandoned(attempts=2)
    with at(NOW + seconds(30)):
        maintenance.resume_operations()
        assert key.claim() == InDoubt()
    Shipment.found["k"] = not_there

    assert reconcile().done == 1

    row = key.row
    assert (row.state, row.resumes) == (State.PROCESSING, 0)
    assert key.events()[-1].kind == EventKind.RESOLVED
    assert key.events()[-1].data["outcome"] == "resumed"
    with at(NOW + AFTER):
        assert maintenance.resume_operations().done == 1
        assert key.claim() == Replay(SHIPPED)


def test_what_it_does_not_have_and_would_not_dedupe_may_still_be_on_its_way() -> None:
    key = in_doubt()
    Shipment.found["k"] = not_there

    for after in (AFTER, ALERT, WITHDRAW - seconds(1)):
        assert reconcile(after).done == 0
    assert key.row.state == State.IN_DOUBT

    assert reconcile(WITHDRAW + reconciliation.LONGEST).done == 1
    row = key.row
    assert (row.state, row.failure) == (State.FAILED, "the carrier has nothing of it")
    assert (row.recovery_point, row.context) == ("", None)
    assert groups() == ["no k"]
    assert key.events()[-1].data["outcome"] == "not_sent"
    assert Shipment.keys == []


def test_a_call_that_arrives_late_is_found_after_all() -> None:
    key = in_doubt()
    Shipment.found["k"] = not_there
    reconcile()

    Shipment.found["k"] = carried

    assert reconcile(WITHDRAW * 2).done == 1
    assert key.row.state == State.SUCCEEDED


def test_a_call_that_is_remembered_for_a_while_is_withdrawn_only_that_much_later() -> None:
    key = in_doubt(kind=Parcel)
    Shipment.found["k"] = not_there
    window = seconds(3600)

    # Within its window it is called again, as late as a lease before the end.
    assert reconcile(window - LEASE - seconds(1)).done == 1
    assert key.row.state == State.PROCESSING
    assert reconcile(window + WITHDRAW - seconds(1)).done == 0
    assert reconcile(window + WITHDRAW + reconciliation.LONGEST).done == 1
    assert key.row.state == State.FAILED


# What the other side does not say


def test_what_stays_unknown_is_asked_about_ever_more_rarely() -> None:
    in_doubt()

    times = []
    for second in range(60, 200):
        asked = len(Shipment.asked)
        reconcile(seconds(second))
        times += [second] * (len(Shipment.asked) - asked)

    assert times[:3] == [60, 68, 77]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert len(times) < 15


def test_it_never_rests_longer_than_the_longest_pause() -> None:
    in_doubt()
    day = timedelta(days=1)
    reconcile(day)

    assert reconcile(day + reconciliation.LONGEST - seconds(1)).details[0].startswith("1 open")
    reconcile(day + reconciliation.LONGEST)

    assert len(Shipment.asked) == 2


@pytest.mark.parametrize(("answer", "step"), [(away, 17), (not_there, 60), (away, 600)])
def test_somebody_is_called_once_when_it_is_open_for_too_long(
    answer: Callable[[], Outcome], step: int, caplog: pytest.LogCaptureFixture
) -> None:
    key = in_doubt()
    Shipment.found["k"] = answer

    def alarms() -> int:
        return caplog.text.count(f"{Letter.name} {key.row.digest[:4].hex()}")

    for second in range(60, 900, step):
        reconcile(seconds(second))
    assert alarms() == 0

    result = reconcile(ALERT)
    assert alarms() == 1
    assert "1 open for longer than 0:15:00" in result.details
    for second in range(900, 2000, step):
        reconcile(seconds(second))
    assert alarms() == 1
    assert key.row.state == State.IN_DOUBT


def test_somebody_is_called_for_what_was_not_asked_about_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    abandoned()

    reconcile(ALERT * 2)

    (record,) = [it for it in caplog.records if it.levelno == logging.ERROR]
    assert "still open after 0:30:00: the carrier is away" in record.getMessage()


def test_an_operation_that_fails_does_not_keep_the_next_one_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = named("lost")
    lease = lost.won(lease=timedelta(0))
    kept = envelope(Letter(), {"what": "lost"}, build_policy({}), lease)
    kept["operation"] = "tests.of_an_older_release"
    lost.store.record_recovery_point(lease, PREPARED, kept)
    raising, good = in_doubt("raising"), in_doubt("good")

    def fail() -> Outcome:
        raise RuntimeError("boom")

    Shipment.found |= {"raising": fail, "good": carried}
    result = reconcile()

    assert (result.done, result.failed) == (1, 1)
    assert (good.row.state, raising.row.state) == (State.SUCCEEDED, State.IN_DOUBT)
    assert f"could not reconcile the operation of key {lease.key_id}" in caplog.text
    # It comes behind the others the next time, and not in every run.
    assert lost.row.look_up_at > NOW + AFTER


def test_a_finalize_that_fails_leaves_it_in_doubt_and_is_not_tried_in_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = in_doubt()
    Shipment.found["k"] = carried

    def fail(*_: Any) -> Any:
        Group.objects.create(name="half")
        raise RuntimeError("boom")

    with monkeypatch.context() as patched:
        patched.setattr(Letter, "finalize", fail)
        for _ in range(3):
            reconcile()

    assert (key.row.state, groups(), key.responses()) == (State.IN_DOUBT, [], [])
    kinds = [event.kind for event in key.events()]
    assert kinds == [EventKind.IN_DOUBT, EventKind.IN_DOUBT]
    assert key.row.failure == "RuntimeError when it was settled"
    assert reconcile(ALERT).done == 1
    assert groups() == ["k"]


# Beside others


@pytest.mark.django_db(transaction=True)
def test_whoever_was_faster_is_not_overruled() -> None:
    key = abandoned()

    def meanwhile() -> Outcome:
        with at(NOW + AFTER):
            elsewhere(maintenance.resume_operations)
        return Refused({"code": "late"})

    Shipment.found["k"] = meanwhile
    result = reconcile()

    assert (result.done, result.failed) == (0, 0)
    with at(NOW + AFTER):
        assert key.claim() == Replay(SHIPPED)
    assert EventKind.RESOLVED not in [event.kind for event in key.events()]


@pytest.mark.django_db(transaction=True)
def test_a_client_that_retries_while_it_is_settled_hears_that_it_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = abandoned()
    heard: list[Any] = []
    finalize = Shipment.finalize

    def listen(self: Shipment, context: dict[str, Any], outcome: Any) -> Any:
        heard.append(elsewhere(key.claim))
        return finalize(self, context, outcome)

    monkeypatch.setattr(Shipment, "finalize", listen)
    Shipment.found["k"] = carried

    assert reconcile().done == 1
    assert [type(decision) for decision in heard] == [Busy]


def test_it_stops_at_its_bound_and_goes_on_the_next_time(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BATCH_SIZE": 2, "MAX_BATCHES": 2}
    for number in range(5):
        in_doubt(str(number))
        Shipment.found[str(number)] = carried

    results = [reconcile() for _ in range(2)]

    assert [(result.done, result.more) for result in results] == [(4, True), (1, False)]


def test_how_it_ended_and_what_is_overdue_is_counted() -> None:
    def counted(outcome: str) -> float:
        labels = {"operation": Letter.name, "outcome": outcome}
        return REGISTRY.get_sample_value("idempotency_settlements_total", labels) or 0

    before = {outcome: counted(outcome) for outcome in ("done", "overdue")}
    in_doubt("good")
    in_doubt("bad")
    Shipment.found["good"] = carried

    reconcile(ALERT)

    assert {outcome: counted(outcome) - before[outcome] for outcome in before} == {
        "done": 1,
        "overdue": 1,
    }
    assert REGISTRY.get_sample_value("idempotency_operations_overdue") == 1


# Looking up before calling again


def test_an_interrupted_call_that_cannot_be_repeated_is_looked_up_by_whoever_resumes() -> None:
    key = abandoned(kind=Letter)
    Shipment.found["k"] = carried

    assert maintenance.resume_operations().done == 1

    assert (len(Shipment.asked), Shipment.keys) == (1, [])
    assert key.claim() == Replay(SHIPPED)


@pytest.mark.parametrize("answer", [away, not_there])
def test_an_interrupted_call_that_nobody_knows_of_is_in_doubt_and_not_repeated(
    answer: Callable[[], Outcome],
) -> None:
    key = abandoned(kind=Letter)
    Shipment.found["k"] = answer

    maintenance.resume_operations()

    assert key.claim() == InDoubt()
    assert Shipment.keys == []
    assert key.row.failure.startswith("interrupted at a call that cannot be repeated: the carrier")


@pytest.mark.parametrize(
    ("after", "calls"), [(seconds(3600) - LEASE - seconds(1), 1), (seconds(3600) - LEASE, 0)]
)
def test_a_key_is_trusted_only_as_long_as_the_other_side_remembers_it(
    after: timedelta, calls: int
) -> None:
    key = abandoned(kind=Parcel)
    Shipment.found["k"] = carried

    with at(NOW + after):
        maintenance.resume_operations()
        assert key.claim() == Replay(SHIPPED)

    assert (len(Shipment.keys), len(Shipment.asked)) == (calls, 1 - calls)
