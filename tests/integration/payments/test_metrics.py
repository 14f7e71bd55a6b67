"""Who may read /metrics, and what is there."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def guarded(settings: Any) -> None:
    settings.DEMO, settings.METRICS_TOKEN = False, "s3cret"


def read(client: Client, **headers: str) -> dict[str, float]:
    """Metrics without labels, by name."""
    headers.setdefault("Authorization", "Bearer s3cret")
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.content
    families = text_string_to_metric_families(answer.content.decode())
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


def test_without_a_token_there_is_nothing_there(client: Client, settings: Any) -> None:
    settings.METRICS_TOKEN = ""
    assert client.get("/metrics").status_code == 404
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 404


@pytest.mark.parametrize("said", [None, "", "Bearer", "Bearer s3cre", "Basic s3cret", "Bearer é"])
def test_without_the_token_it_is_a_401(client: Client, said: str | None) -> None:
    answer = client.get("/metrics", headers={} if said is None else {"Authorization": said})
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert b"idempotency_" not in answer.content


def test_the_demo_shows_them_to_this_machine_only(client: Client, settings: Any) -> None:
    settings.METRICS_TOKEN, settings.DEMO = "", True
    assert client.get("/metrics", REMOTE_ADDR="127.0.0.1").status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="192.0.2.7").status_code == 404
    assert client.get("/metrics", REMOTE_ADDR="").status_code == 404


def test_they_can_only_be_read(client: Client) -> None:
    assert client.post("/metrics").status_code == 405


def test_it_says_how_the_database_stands(client: Client) -> None:
    found = read(client)
    assert found["idempotency_database_answers"] == 1
    assert found["idempotency_keys_in_doubt"] == 0
    assert found["idempotency_partition_days_ahead"] == 14


def test_a_database_that_is_away_hides_nothing_else(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(using: str | None) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("idempotency.observability.vitals.read", fail)
    found = read(client)
    assert found["idempotency_database_answers"] == 0
    assert "idempotency_keys_in_doubt" not in found
    assert (
        "python_gc_objects_collected_total"
        in client.get("/metrics", headers={"Authorization": "Bearer s3cret"}).content.decode()
    )


def test_it_speaks_the_format_that_is_asked_for(client: Client) -> None:
    headers = {"Authorization": "Bearer s3cret", "Accept": "application/openmetrics-text"}
    answer = client.get("/metrics", headers=headers)
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")
