"""Probes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from idempotency.observability.looks import Look
from payments import health
from tests.integration.payments.api import problem


def test_a_process_that_answers_is_alive_without_a_database(client: Client) -> None:
    # No database fixture: a query here would fail the test.
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
def test_a_process_with_all_it_needs_is_ready(client: Client) -> None:
    response = client.get("/readyz")
    assert response.status_code == 200
    checks = response.json()["checks"]
    assert (checks["database"], checks["migrations"], checks["partitions"]) == ("ok",) * 3


@pytest.mark.django_db
def test_redis_is_reported_but_not_needed(client: Client, settings: Any) -> None:
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["checks"]["redis"] == "unavailable"


@pytest.mark.django_db
def test_a_database_that_is_away_is_not_ready(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("django.db.backends.base.base.BaseDatabaseWrapper.cursor", fail)
    document = problem(client.get("/readyz"), 503, "not_ready")
    assert document["checks"]["database"] == "unavailable"
    assert client.get("/healthz").status_code == 200


@pytest.mark.django_db
def test_a_missing_migration_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.migrations.recorder import MigrationRecorder

    applied = MigrationRecorder.applied_migrations

    def without_one(recorder: Any) -> Any:
        found = applied(recorder)
        found.pop(max(name for name in found if name[0] == "payments"))
        return found

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", without_one)
    document = problem(client.get("/readyz"), 503, "not_ready")
    assert document["checks"]["migrations"] == "1 to apply"


@pytest.mark.django_db
def test_a_database_that_says_nothing_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    # More than the wait is worth, should nobody stop waiting.
    monkeypatch.setitem(health._CHECKS, "database", lambda: str(answer.wait(60)))
    monkeypatch.setattr(health, "_look", Look(0.05))
    try:
        for _ in range(2):
            document = problem(client.get("/readyz"), 503, "not_ready")
            assert document["checks"]["database"] == "no answer"
            assert document["checks"]["redis"] == "ok"
    finally:
        answer.set()


@pytest.mark.django_db
def test_a_signed_in_session_needs_no_database_where_nobody_asks_who_it_is(
    client: Client, django_user_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(django_user_model.objects.create_user("ops"))

    def fail(*arguments: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("django.db.backends.base.base.BaseDatabaseWrapper.cursor", fail)
    assert client.get("/healthz").status_code == 200
    assert client.get("/v1/balance").status_code == 401
    problem(client.get("/readyz"), 503, "not_ready")


@pytest.mark.django_db
def test_no_partition_for_tomorrow_is_not_ready(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotency.partitions.days_ahead", lambda using: 0)
    document = problem(client.get("/readyz"), 503, "not_ready")
    assert document["checks"]["partitions"] == "none for tomorrow"
