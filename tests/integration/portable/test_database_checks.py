"""The system checks that ask the database, as ``migrate`` and ``check --database`` run them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import call_command
from django.db import connection, connections

from idempotency import checks
from tests.integration.portable.conformance.harness import NOW, at

pytestmark = pytest.mark.django_db(transaction=True)


def found(check_id: str, databases: list[str]) -> list[str]:
    messages = [
        message
        for message in run_checks(tags=[Tags.database], databases=databases)
        if message.id == check_id
    ]
    assert all(message.hint for message in messages)
    return [message.msg for message in messages]


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_nothing_is_asked_without_databases(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert checks.check_databases(databases=None) == []
        assert checks.check_databases(databases=[]) == []


def test_a_healthy_database_raises_nothing() -> None:
    assert checks.check_databases(databases=["default"]) == []


@pytest.mark.postgresql
def test_w003_few_days_of_partitions_are_ready(settings: Any) -> None:
    with at(NOW + timedelta(days=11)):
        assert found("idempotency.W003", ["default"]) == []
    with at(NOW + timedelta(days=12)):
        (message,) = found("idempotency.W003", ["default"])
        assert message == "Only 2 day(s) of partitions are ready on 'default'."

        settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"PARTITION_DAYS_ALARM": 2}
        assert found("idempotency.W003", ["default"]) == []


@pytest.mark.postgresql
def test_w003_is_silent_before_the_first_migration() -> None:
    execute("ALTER TABLE idempotency_storedresponse RENAME TO elsewhere")
    try:
        assert found("idempotency.W003", ["default"]) == []
    finally:
        execute("ALTER TABLE elsewhere RENAME TO idempotency_storedresponse")


@pytest.mark.postgresql
def test_w003_is_silent_on_a_database_without_our_tables(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.ElsewhereRouter"]

    with at(NOW + timedelta(days=100)):
        assert checks.check_databases(databases=["default"]) == []


class ElsewhereRouter:
    """Keeps the keys on another database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "idempotency" else None


@pytest.mark.postgresql
def test_w002_a_statement_may_take_longer_than_the_lease() -> None:
    try:
        execute("SET statement_timeout = '30s'")
        (message,) = found("idempotency.W002", ["default"])
        assert message.startswith("IDEMPOTENCY: the lease (0:00:30) is not longer than a statement")
        execute("SET statement_timeout = '29s'")
        assert found("idempotency.W002", ["default"]) == []
        execute("SET statement_timeout = 0")
        assert found("idempotency.W002", ["default"]) == []
    finally:
        connections["default"].close()


def test_settings_that_cannot_be_read_are_left_to_e001(settings: Any) -> None:
    settings.IDEMPOTENCY = {"TLL": 1}

    assert checks.check_databases(databases=["default"]) == []


def test_the_checks_run_with_manage_py_check() -> None:
    call_command("check", "--database", "default", "--fail-level", "WARNING")
