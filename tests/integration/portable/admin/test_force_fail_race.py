"""Force-fail against the live owner: one of the two wins, never both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connections, transaction

from idempotency import operators
from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import Scope
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.operators import Seen
from idempotency.stores import get_store
from tests.integration.portable.admin.rows import CREATED, write_key

ROUNDS = 25
CONTEXT = {"operation": "payments.charge", "ttl": 60.0, "context": {}}


def both(first: Callable[[], bool], second: Callable[[], bool]) -> tuple[bool, bool]:
    """Start both at the same moment, each on a connection of its own; whether each won."""
    barrier = threading.Barrier(2, timeout=30)

    def run(work: Callable[[], bool]) -> bool:
        barrier.wait()
        try:
            return work()
        except LeaseLost:
            return False
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=2) as threads:
        running = [threads.submit(run, work) for work in (first, second)]
        won = [thread.result(timeout=60) for thread in running]
    return won[0], won[1]


def lease_of(key: IdempotencyKey) -> Lease:
    scope = Scope(key.route, key.tenant, key.key)
    return Lease(key.pk, key.owner, 1, scope.digest, scope, key.response_day)


def end(key: IdempotencyKey) -> bool:
    return operators.force_fail(
        key.pk, seen=Seen.of(key), actor="maria", reason="drill", final=True
    )


@pytest.mark.django_db(transaction=True)
def test_either_the_owner_completes_or_the_operator_ends_it() -> None:
    for number in range(ROUNDS):
        key = write_key(key=f"round-{number}")

        def complete(key: IdempotencyKey = key) -> bool:
            with transaction.atomic():
                get_store().complete(lease_of(key), CREATED, timedelta(days=1))
            return True

        completed, ended = both(complete, lambda key=key: end(key))
        assert completed is not ended
        answer = StoredResponse.objects.get(key_id=key.pk)
        assert answer.status == (201 if completed else 410)
        assert KeyEvent.objects.filter(key_id=key.pk).count() == int(ended)


@pytest.mark.django_db(transaction=True)
def test_no_operation_makes_its_call_once_it_was_ended_as_harmless() -> None:
    for number in range(ROUNDS):
        key = write_key(key=f"round-{number}")

        def prepare(key: IdempotencyKey = key) -> bool:
            with transaction.atomic():
                get_store().record_recovery_point(lease_of(key), "prepared", CONTEXT)
            return True

        prepared, ended = both(prepare, lambda key=key: end(key))
        assert prepared is not ended
        key.refresh_from_db()
        assert key.state == ("processing" if prepared else "succeeded")
