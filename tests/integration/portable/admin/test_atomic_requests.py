"""Pages that decide, in a project that runs every view in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.urls import resolve

from tests.integration.portable.admin.rows import token
from tests.integration.portable.conformance.harness import elsewhere
from tests.integration.portable.doubts.payouts import PAID, Payout, paid, says, stand
from tests.integration.portable.jobs.shipments import Shipment

ADMIN = "/admin/idempotency"
DECIDING = [
    "doubt/1/change",
    "proposal/1/change",
    "idempotencykey/force-fail",
    "outboxmessage/resend",
    "outboxmessage/discard",
]


@pytest.fixture
def atomic_requests(transactional_db: None) -> Iterator[None]:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.parametrize("page", DECIDING)
def test_a_page_that_decides_runs_in_no_transaction_of_the_projects(page: str) -> None:
    view: Any = resolve(f"{ADMIN}/{page}/").func
    assert view._non_atomic_requests == {"default"}


def test_an_operation_is_taken_over_before_it_is_settled(
    atomic_requests: None, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = staff("view_idempotencykey", "settle_idempotencykey", name="maria")
    key, committed = stand(), list[int]()
    says(PAID)

    def finalize(operation: Payout, *step: Any) -> Any:
        committed.append(elsewhere(lambda: key.row.attempt))
        return Shipment.finalize(operation, *step)

    monkeypatch.setattr(Payout, "finalize", finalize)
    form = {"token": token(key.row), "step": "settle", "choice": "succeeded", "reason": "they said"}
    assert client.post(f"{ADMIN}/doubt/{key.row.pk}/change/", form).status_code == 302
    assert committed == [2]
    assert paid() == ["k"]
    assert LogEntry.objects.count() == 1
