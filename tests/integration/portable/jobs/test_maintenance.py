"""The scheduled jobs: what each does, within its bounds, beside itself and at a dry run."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from idempotency import jobs, maintenance, partitions, signals
from idempotency.conf import settings as idempotency_settings
from idempotency.core.decisions import Busy, InDoubt, Replay
from idempotency.core.states import State
from idempotency.http.requests import build_policy
from idempotency.maintenance import PAUSES
from idempotency.models import EventKind, IdempotencyKey, KeyEvent, StoredResponse
from idempotency.operations import PREPARED, Done, Outcome, envelope
from tests.integration.portable.conformance.harness import (
    ANSWER,
    LEASE,
    NOW,
    TTL,
    at,
    seconds,
)
from tests.integration.portable.jobs.shipments import (
    JOBS,
    SHIPPED,
    Shipment,
    abandoned,
    away,
    named,
    paused_inside,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


# Reclaiming


def test_reclaiming_frees_keys_whose_owner_is_gone() -> None:
    gone, running = named("gone"), named("running")
    gone.won(lease=timedelta(0))
    running.won()

    result = maintenance.reclaim_expired_leases()

    assert (result.job, result.done, result.failed) == ("reclaim_expired_leases", 1, 0)
    assert (result.more, result.busy) == (False, False)
    assert (gone.row.state, running.row.state) == (State.FAILED, State.PROCESSING)


def test_a_reclaimed_key_stands_as_long_as_any_view_may_want() -> None:
    """Its view's TTL is not known here; expired, it would run again for another request."""
    key = named()
    key.won(lease=timedelta(0))

    maintenance.reclaim_expired_leases()

    assert key.row.expires_at - key.row.completed_at == idempotency_settings().retention


def test_reclaiming_stops_at_its_bound_and_goes_on_the_next_time(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BATCH_SIZE": 2, "MAX_BATCHES": 2}
    for number in range(5):
        named(str(number)).won(lease=timedelta(0))

    results = [maintenance.reclaim_expired_leases() for _ in range(2)]

    assert [(result.done, result.more) for result in results] == [(4, True), (1, False)]


def test_reclaiming_waits_for_the_grace(settings: Any, frozen: None) -> None:
    settings.IDEMPOTENCY = {"RECLAIM_GRACE": 10}
    named().won(lease=timedelta(0))

    assert maintenance.reclaim_expired_leases().done == 0
    with at(NOW + seconds(10)):
        assert maintenance.reclaim_expired_leases().done == 1


def test_a_job_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BUDGET", timedelta(0))
    named().won(lease=timedelta(0))

    result = maintenance.reclaim_expired_leases()

    assert (result.done, result.more) == (0, True)


# Resuming


def test_case_43_an_abandoned_operation_is_driven_to_its_end_without_the_client() -> None:
    key = abandoned()

    result = maintenance.resume_operations()

    assert (result.done, result.failed) == (1, 0)
    assert key.claim() == Replay(SHIPPED)
    assert key.row.attempt == 2
    assert Group.objects.count() == 1
    assert maintenance.resume_operations().done == 0


def test_what_runs_is_left_to_its_owner() -> None:
    key = named()
    lease = key.won()
    kept = envelope(Shipment(), {"what": "k"}, build_policy({}), lease)
    key.store.record_recovery_point(lease, PREPARED, kept)

    assert maintenance.resume_operations().done == 0
    assert Shipment.keys == []


def test_an_operation_that_stays_unknown_gets_one_try_a_run_and_keeps_its_downstream_key(
    frozen: None,
) -> None:
    key = abandoned()
    Shipment.answers["k"] = away

    result = maintenance.resume_operations()

    assert (result.done, result.failed, result.more) == (0, 0, False)
    assert result.details == (f"{key.row.pk}: still unknown",)
    assert (key.row.state, key.row.attempt) == (State.PROCESSING, 2)
    assert key.row.lease_expires_at == NOW
    maintenance.resume_operations()
    assert len(Shipment.keys) == 2
    assert len(set(Shipment.keys)) == 1


def test_it_rests_longer_between_the_tries_of_the_job(frozen: None) -> None:
    abandoned(attempts=3)
    Shipment.answers["k"] = away

    maintenance.resume_operations()
    with at(NOW + PAUSES[2] - seconds(1)):
        maintenance.resume_operations()
    assert Shipment.keys == []
    with at(NOW + PAUSES[2]):
        maintenance.resume_operations()
    assert len(Shipment.keys) == 1


@pytest.mark.parametrize("trouble", [RuntimeError, KeyError])
def test_an_operation_that_fails_does_not_keep_the_next_one_waiting(
    trouble: type[Exception], caplog: pytest.LogCaptureFixture, frozen: None
) -> None:
    lost = named("lost")
    lease = lost.won(lease=timedelta(0))
    kept = envelope(Shipment(), {"what": "lost"}, build_policy({}), lease)
    kept["operation"] = "tests.of_an_older_release"
    lost.store.record_recovery_point(lease, PREPARED, kept)
    raising, good = abandoned("raising"), abandoned("good")

    def fail() -> Outcome:
        raise trouble("boom")

    Shipment.answers["raising"] = fail
    result = maintenance.resume_operations()

    assert (result.done, result.failed) == (1, 1)
    assert good.claim() == Replay(SHIPPED)
    # A call that raised is unknown; an operation that is not known here waits for who knows it.
    assert raising.row.failure == f"{trouble.__name__} in the call"
    assert lost.row.failure == "this process cannot read it"
    assert "cannot be read: Operation 'tests.of_an_older_release' is not known" in caplog.text


def test_an_operation_is_given_up_after_its_attempts(settings: Any, frozen: None) -> None:
    settings.IDEMPOTENCY = {"RESUME_ATTEMPTS": 4}
    key = abandoned(attempts=5)
    Shipment.answers["k"] = away
    told: list[Any] = []

    def listen(*, attempt: int, **_: Any) -> None:
        told.append(attempt)

    signals.key_in_doubt.connect(listen)
    try:
        with at(NOW + sum(PAUSES[:5], timedelta())):
            result = maintenance.resume_operations()
    finally:
        signals.key_in_doubt.disconnect(listen)

    assert (result.done, result.details) == (1, (f"{key.row.pk}: in doubt",))
    assert key.claim() == InDoubt()
    assert key.row.failure == "given up after 5 attempts"
    assert key.events()[-1].kind == EventKind.IN_DOUBT
    assert (Shipment.keys, told) == ([], [6])


def test_a_client_that_retries_a_lot_does_not_use_up_the_attempts_of_the_job(
    settings: Any, frozen: None
) -> None:
    settings.IDEMPOTENCY = {"RESUME_ATTEMPTS": 4}
    key = abandoned()
    for _ in range(30):
        key.won(lease=timedelta(0))

    maintenance.resume_operations()

    assert key.claim() == Replay(SHIPPED)


def test_an_operator_who_frees_an_operation_that_was_given_up_has_it_resumed(
    settings: Any, frozen: None
) -> None:
    settings.IDEMPOTENCY = {"RESUME_ATTEMPTS": 4}
    key = abandoned(attempts=5)
    with at(NOW + sum(PAUSES[:5], timedelta())):
        maintenance.resume_operations()
        assert key.claim() == InDoubt()
        assert key.store.force_fail(
            key.row.pk, owner=key.row.owner, actor="ann", reason="back", ttl=LEASE
        )

        maintenance.resume_operations()

        assert key.claim() == Replay(SHIPPED)


@pytest.mark.postgresql
def test_case_53_a_resumed_operation_makes_sure_of_its_day() -> None:
    key = abandoned()
    later = NOW + timedelta(days=200)

    with at(later):
        maintenance.resume_operations()
        assert key.claim() == Replay(SHIPPED)

    assert StoredResponse.objects.get().day == later.date()
    with connection.cursor() as cursor:
        for parent in partitions.PARENTS:
            cursor.execute(f"DROP TABLE {parent}_p{later:%Y%m%d}")
    partitions.forget_day(connection, later.date())


def test_resuming_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        abandoned(name)

    def slow() -> Outcome:
        monkeypatch.setattr(jobs.Run, "out_of_time", True)
        return Done({"id": 1})

    Shipment.answers |= {"a": slow, "b": slow}
    result = maintenance.resume_operations()

    assert (result.done, result.more) == (1, True)


# Pruning


def test_pruning_deletes_expired_keys_wherever_they_are(settings: Any, frozen: None) -> None:
    settings.IDEMPOTENCY = {"BATCH_SIZE": 2, "MAX_BATCHES": 3}
    for number in range(9):
        named(str(number)).completed(ttl=TTL if number < 7 else seconds(1))

    with at(NOW + seconds(1)):
        dry = maintenance.prune_expired_keys(dry_run=True)
        assert (dry.done, dry.dry_run, IdempotencyKey.objects.count()) == (2, True, 9)
        # Four batches of seven living keys come first and do not count to the bound.
        result = maintenance.prune_expired_keys()

    assert (result.done, result.more) == (2, False)
    assert IdempotencyKey.objects.count() == 7


def test_pruning_stops_at_its_bound_and_goes_on_the_next_time(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BATCH_SIZE": 2, "MAX_BATCHES": 2}
    for number in range(5):
        named(str(number)).completed(ttl=timedelta(0))

    results = [maintenance.prune_expired_keys() for _ in range(2)]

    assert [(result.done, result.more) for result in results] == [(4, True), (1, False)]


def test_without_partitions_old_answers_and_events_of_settled_keys_are_pruned(
    frozen: None,
) -> None:
    if connection.vendor == "postgresql":
        pytest.skip("partitions do this here")
    with at(NOW - timedelta(days=40)):
        named("old").completed()
        named("in doubt").store.doubt(named("in doubt").won(), "who knows")
        named("long").completed(ttl=timedelta(days=90))
    named("young").completed()
    KeyEvent.objects.create(day=NOW.date() - timedelta(days=40), key_id=-1, at=NOW, kind="reused")

    # The old key, its answer, and the event of a key that is gone.
    assert maintenance.prune_expired_keys(dry_run=True).done == 3
    assert maintenance.prune_expired_keys().done == 3
    assert named("long").claim() == Replay(ANSWER)
    assert named("young").claim() == Replay(ANSWER)
    assert StoredResponse.objects.count() == 2
    assert [event.kind for event in KeyEvent.objects.all()] == [EventKind.IN_DOUBT]


# Partitions


def test_partition_jobs_have_nothing_to_do_without_partitions() -> None:
    if connection.vendor == "postgresql":
        pytest.skip("there are partitions here")
    assert partitions.days_ahead("default") is None
    for job in (maintenance.create_partitions, maintenance.drop_expired_partitions):
        result = job()
        assert (result.done, result.failed, result.details) == (0, 0, ())


@pytest.mark.postgresql
def test_dropping_says_at_a_dry_run_what_it_would_do_and_does_not_do_it() -> None:
    day = (NOW - timedelta(days=40)).date()
    with connection.cursor() as cursor:
        cursor.execute("SELECT idempotency_ensure_day_v1('idempotency_keyevent', %s)", [day])
    table = f"idempotency_keyevent_p{day:%Y%m%d}"
    plan = (f"detach {table}", f"drop {table}")

    dry = maintenance.drop_expired_partitions(dry_run=True)
    assert (dry.done, dry.details) == (1, plan)
    result = maintenance.drop_expired_partitions()
    assert (result.done, result.failed, result.details) == (1, 0, plan)
    assert maintenance.drop_expired_partitions(dry_run=True).done == 0


@pytest.mark.postgresql
def test_creating_makes_the_days_that_are_missing() -> None:
    with connection.cursor() as cursor:
        day = (NOW + timedelta(days=2)).date()
        cursor.execute(f"DROP TABLE idempotency_keyevent_p{day:%Y%m%d}")

    result = maintenance.create_partitions()

    assert (result.done, result.details) == (1, (f"create idempotency_keyevent_p{day:%Y%m%d}",))
    assert partitions.days_ahead("default") == 14


def test_a_lease_of_the_job_lets_nobody_else_in_meanwhile() -> None:
    """While the job drives an operation, the client hears that its key is in use."""
    key = abandoned()
    heard: list[Any] = []

    def ask() -> Outcome:
        heard.append(key.claim())
        return Done({"id": 1})

    Shipment.answers["k"] = ask
    maintenance.resume_operations()

    assert [type(decision) for decision in heard] == [Busy]
    assert key.claim() == Replay(SHIPPED)


# Two at once


@pytest.mark.postgresql
@pytest.mark.parametrize("job", JOBS)
def test_case_55_of_two_runs_of_a_job_at_once_one_works_and_one_leaves(
    job: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "idempotency")
    named().won(lease=timedelta(0))
    run = partial(run_job, job)

    with paused_inside(run) as first:
        second = run()
        others = [run_job(other) for other in JOBS if other != job]

    assert (second.busy, second.done) == (True, 0)
    assert f"{job}: another run is at work on default, so this one leaves" in caplog.text
    assert not first.result().busy
    assert not any(other.busy for other in others)
    assert not run().busy
