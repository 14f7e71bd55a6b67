"""Empties the tables after a transactional test in milliseconds.

Django truncates every table, which on PostgreSQL makes new files for a hundred partitions, and then
writes all content types and permissions anew: a fifth of a second. Here rows are deleted, and those
two tables are left as the migrations have filled them.
"""

from __future__ import annotations

from typing import Any

import pytest

KEPT = {"django_content_type", "auth_permission"}


def pytest_configure(config: pytest.Config) -> None:
    from django.test import TransactionTestCase

    as_django_does = TransactionTestCase._fixture_teardown

    def empty(case: Any) -> None:
        from django.db import connections

        aliases = case._databases_names(include_mirrors=False)
        if all(_may_delete(connections[alias]) for alias in aliases):
            for alias in aliases:
                _delete(connections[alias])
        else:
            as_django_does(case)

    TransactionTestCase._fixture_teardown = empty


def _may_delete(connection: Any) -> bool:
    """The ledger's triggers refuse a DELETE, and only a superuser puts them out of force."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('is_superuser') = 'on'")
        (superuser,) = cursor.fetchone()
    return bool(superuser)


def _delete(connection: Any) -> None:
    from django.db import transaction

    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        emptied = [connection.ops.quote_name(table) for table in sorted(set(tables) - KEPT)]
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL session_replication_role = replica")
            # As TRUNCATE does, wait for whoever still writes: a thread that the test left behind.
            cursor.execute(f"LOCK TABLE {', '.join(emptied)} IN EXCLUSIVE MODE")
        for table in emptied:
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608
