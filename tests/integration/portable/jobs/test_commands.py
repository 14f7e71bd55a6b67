"""The scheduled jobs as management commands: what they print, and how they exit."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from idempotency import maintenance
from idempotency.http.requests import build_policy
from idempotency.models import IdempotencyKey
from idempotency.operations import PREPARED, envelope
from tests.integration.portable.jobs.shipments import (
    JOBS,
    Shipment,
    abandoned,
    named,
    paused_inside,
)

pytestmark = pytest.mark.django_db(transaction=True)


def command(name: str, *options: str) -> str:
    out = StringIO()
    call_command(f"idempotency_{name}", *options, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("job", [*JOBS, "dispatch_outbox", "prune_outbox"])
def test_each_job_has_a_command_that_says_what_it_did(job: str) -> None:
    assert command(job) == f"{job} on default: 0 done\n"
    assert command(job, "--verbosity", "0") == ""
    assert json.loads(command(job, "--json", "--database", "default"))["job"] == job


def test_a_command_works_and_counts() -> None:
    named().won(lease=timedelta(0))
    abandoned("shipment")

    assert command("reclaim_expired_leases") == "reclaim_expired_leases on default: 1 done\n"
    assert command("resume_operations") == "resume_operations on default: 1 done\n"


def test_a_dry_run_is_offered_where_something_is_deleted_and_nowhere_else() -> None:
    named().completed(ttl=timedelta(0))

    assert command("prune_expired_keys", "--dry-run") == (
        "prune_expired_keys on default: 1 would be done\n"
    )
    assert IdempotencyKey.objects.count() == 1
    assert json.loads(command("drop_expired_partitions", "--dry-run", "--json"))["dry_run"]
    with pytest.raises(CommandError, match="unrecognized arguments"):
        command("reclaim_expired_leases", "--dry-run")


def test_a_command_whose_job_failed_in_part_exits_with_1(caplog: pytest.LogCaptureFixture) -> None:
    key = named()
    lease = key.won(lease=timedelta(0))
    kept = envelope(Shipment(), {"what": "k"}, build_policy({}), lease) | {"operation": "unknown"}
    key.store.record_recovery_point(lease, PREPARED, kept)

    with pytest.raises(CommandError, match="1 failed") as caught:
        command("resume_operations")
    assert caught.value.returncode == 1


@pytest.mark.postgresql
def test_a_command_beside_another_run_exits_with_3() -> None:
    with (
        paused_inside(maintenance.prune_expired_keys),
        pytest.raises(CommandError, match="another run is at work") as caught,
    ):
        command("prune_expired_keys")
    assert caught.value.returncode == 3
