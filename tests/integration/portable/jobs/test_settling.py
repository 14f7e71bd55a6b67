"""Settling by somebody who knows: one end, nothing half done, also against a live owner."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from idempotency import operators, signals
from idempotency.core.decisions import InDoubt, Lease, Replay
from idempotency.core.errors import IdempotencyError, LeaseLost
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.http.requests import build_policy
from idempotency.models import EventKind, KeyEvent
from idempotency.operations import PREPARED, Done, NotSent, Outcome, envelope, resume, run_prepared
from idempotency.operators import Seen
from idempotency.settling import Finding
from idempotency.stores.database import DatabaseStore
from tests.integration.portable.api import Gate, background, listening, together
from tests.integration.portable.conformance.harness import LEASE, Key, values_of
from tests.integration.portable.jobs.shipments import (
    SHIPPED,
    Letter,
    Shipment,
    abandoned,
    carried,
    in_doubt,
    named,
    not_there,
    refused,
)

pytestmark = pytest.mark.django_db

ROUNDS = 10


def settle(key: Key, outcome: Finding, seen: Seen | None = None, **options: Any) -> bool:
    return operators.settle(
        key.row.pk,
        seen=seen or Seen.of(key.row),
        outcome=outcome,
        actor="ann",
        reason="the carrier's own page says so",
        **options,
    )


def test_a_person_who_knows_that_it_happened_settles_it_with_the_answer_of_the_operation() -> None:
    key = in_doubt()

    assert settle(key, Done({"id": 1}), data={"ticket": 7})

    assert key.claim() == Replay(SHIPPED)
    event = key.events()[-1]
    assert (event.kind, event.actor) == (EventKind.RESOLVED, "ann")
    assert event.reason == "the carrier's own page says so"
    assert (event.data["ticket"], event.data["outcome"]) == (7, "done")


def test_a_person_who_knows_that_it_was_refused_settles_it_so() -> None:
    key = in_doubt()

    assert settle(key, refused())

    assert (key.row.state, key.responses()[0].status) == (State.SUCCEEDED, 402)


def test_a_person_who_knows_that_it_was_never_sent_frees_the_key_for_its_request() -> None:
    key = in_doubt()

    assert settle(key, NotSent("they never saw it"))

    row = key.row
    assert (row.state, row.failure, row.recovery_point) == (State.FAILED, "they never saw it", "")
    assert list(Group.objects.values_list("name", flat=True)) == ["no k"]
    assert key.won().recovery_point == ""


@pytest.mark.parametrize("outcome", [carried(), not_there()], ids=["done", "not sent"])
def test_a_key_that_changed_since_it_was_seen_is_not_settled(outcome: Finding) -> None:
    key = in_doubt()
    seen = Seen.of(key.row)
    assert key.store.force_fail(key.row.pk, owner=seen.owner, actor="bob", reason="mine", ttl=LEASE)
    before = values_of(key.row)

    assert not settle(key, outcome, seen)

    assert values_of(key.row) == before
    assert Group.objects.count() == 0
    assert EventKind.RESOLVED not in [event.kind for event in key.events()]


def test_atomic_work_is_nothing_to_settle() -> None:
    key = named()
    key.won()

    assert not settle(key, Done({}))


def test_an_operation_that_is_not_known_here_is_not_touched() -> None:
    key = named()
    lease = key.won()
    kept = envelope(Letter(), {"what": "k"}, build_policy({}), lease) | {"operation": "tests.other"}
    key.store.record_recovery_point(lease, PREPARED, kept)
    before = values_of(key.row)

    with pytest.raises(ImproperlyConfigured, match=r"tests\.other"):
        settle(key, Done({}))

    assert values_of(key.row) == before


# All or nothing


@pytest.mark.parametrize("finding", [carried(), not_there()], ids=["done", "not sent"])
def test_the_story_and_the_end_are_written_together_or_not_at_all(
    finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = in_doubt()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no story")

    monkeypatch.setattr(DatabaseStore, "resolved", fail)
    with pytest.raises(RuntimeError, match="no story"):
        settle(key, finding)

    assert (key.claim(), Group.objects.count(), key.responses()) == (InDoubt(), 0, [])


@pytest.mark.parametrize(
    ("stand", "state"), [(in_doubt, State.IN_DOUBT), (abandoned, State.PROCESSING)]
)
def test_a_step_that_fails_leaves_it_as_open_as_it_was(
    stand: Any, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = stand()

    def fail(*_: Any) -> None:
        raise ValueError("boom")

    monkeypatch.setattr(Shipment, "finalize", fail)
    with pytest.raises(ValueError, match="boom"):
        settle(key, Done({}))

    assert key.row.state == state
    assert key.row.failure == "ValueError when it was settled"
    monkeypatch.undo()
    assert settle(key, carried())
    assert key.claim() == Replay(SHIPPED)


@pytest.mark.django_db(transaction=True)
def test_a_hook_that_fails_after_the_commit_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = in_doubt()
    finalize = Letter.finalize

    def hooked(self: Letter, context: dict[str, Any], outcome: Any) -> Any:
        transaction.on_commit(lambda: 1 / 0)
        return finalize(self, context, outcome)

    monkeypatch.setattr(Letter, "finalize", hooked)

    assert settle(key, carried())
    assert key.claim() == Replay(SHIPPED)
    assert "an on_commit hook of settling tests.letter failed" in caplog.text


def test_listeners_hear_of_the_end() -> None:
    told: list[Any] = []
    with listening(signals.key_completed, lambda **heard: told.append(heard["status"])):
        settle(in_doubt("done"), carried())
    with listening(signals.key_failed, lambda **heard: told.append(heard["reason"])):
        settle(in_doubt("never"), NotSent("no"))

    assert told == [201, "no"]


# Against a live owner


def drive(key: Key, lease: Lease) -> Any:
    """What the owner's request does after its prepare; the answer, or the error."""
    try:
        return run_prepared(key.store, lease, lease.context or {})
    except IdempotencyError as error:
        return type(error)


def prepared(name: str = "k") -> tuple[Key, Lease]:
    key = named(name)
    won = key.won()
    kept = envelope(Letter(), {"what": name}, build_policy({}), won)
    key.store.record_recovery_point(won, PREPARED, kept)
    return key, Lease(
        won.key_id, won.owner, 1, won.digest, won.scope, won.response_day, PREPARED, kept
    )


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_still_calling_when_it_is_settled_has_its_work_rolled_back() -> None:
    key, lease = prepared()
    gate = Gate()

    def call() -> Outcome:
        gate()
        return Done({"id": 2})

    Shipment.answers["k"] = call
    with background(lambda: drive(key, lease)) as worker:
        gate.wait_until_reached()
        assert settle(key, carried())
        gate.open()
        assert worker.result() is LeaseLost

    assert key.claim() == Replay(SHIPPED)
    assert Group.objects.count() == 1
    assert len(key.responses()) == 1


def test_nobody_says_that_a_call_was_never_sent_while_somebody_may_be_sending_it() -> None:
    key, lease = prepared()
    before = values_of(key.row)

    assert not settle(key, NotSent("they never saw it"))

    assert values_of(key.row) == before
    assert drive(key, lease).status == 201


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql  # SQLite has one writer at a time
@pytest.mark.parametrize("paused_at", ["finalize", "resolved"])
def test_a_worker_and_a_settler_who_finalize_at_once_do_not_block_each_other(
    paused_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settler is held with its claim committed and its transaction open."""
    key, lease = prepared()
    gate = Gate()
    resolved, finalize = DatabaseStore.resolved, Letter.finalize

    def held(self: DatabaseStore, lease: Lease, **told: Any) -> None:
        gate()
        resolved(self, lease, **told)

    def held_before(self: Letter, context: dict[str, Any], outcome: Any) -> Any:
        if outcome.result["id"] == 1:
            gate()
        return finalize(self, context, outcome)

    if paused_at == "resolved":
        monkeypatch.setattr(DatabaseStore, "resolved", held)
    else:
        monkeypatch.setattr(Letter, "finalize", held_before)
    Shipment.answers["k"] = lambda: Done({"id": 2})
    with background(lambda: settle(key, Done({"id": 1}))) as settler:
        gate.wait_until_reached()
        if paused_at == "finalize":
            assert drive(key, lease) is LeaseLost
            gate.open()
        else:
            with background(lambda: drive(key, lease)) as worker:
                gate.open()
                assert not isinstance(worker.result(), RecordedResponse)
        assert settler.result()

    assert key.claim() == Replay(SHIPPED)
    assert Group.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_a_worker_and_two_people_at_once_one_ends_it() -> None:
    for number in range(ROUNDS):
        name = f"round {number}"
        key, lease = prepared(name)
        seen = Seen.of(key.row)

        won = together(
            [
                lambda key=key, lease=lease: isinstance(drive(key, lease), RecordedResponse),
                lambda key=key, seen=seen: settle(key, carried(), seen),
                lambda key=key, seen=seen: settle(key, refused(), seen),
            ]
        )

        assert won.count(True) == 1, won
        assert Group.objects.filter(name=name).count() == 1
        stories = KeyEvent.objects.filter(key_id=lease.key_id, kind=EventKind.RESOLVED)
        assert stories.count() == won[1:].count(True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
def test_a_settlers_own_lease_that_ran_out_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = in_doubt()
    finalize = Letter.finalize

    def slow(self: Letter, context: dict[str, Any], outcome: Any) -> Any:
        # Somebody takes over from the settler before it is done.
        monkeypatch.setattr(Letter, "finalize", finalize)
        with background(lambda: settle(key, refused())) as other:
            assert other.result()
        return finalize(self, context, outcome)

    monkeypatch.setattr(Letter, "finalize", slow)

    assert not settle(key, carried())
    assert (key.responses()[0].status, Group.objects.count()) == (402, 1)


def test_a_crash_between_the_two_writes_leaves_it_to_whoever_resumes() -> None:
    key = in_doubt()
    taken = key.store.take_over_seen(key.row.pk, Seen.of(key.row), LEASE * 0)
    assert taken is not None
    Shipment.found["k"] = carried

    again = key.store.take_over(taken.key_id, LEASE)
    assert again is not None
    resume(key.store, again)

    assert key.claim() == Replay(SHIPPED)
    assert Shipment.keys == []
