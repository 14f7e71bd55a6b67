"""Migrations: complete, reversible, and the same schema whichever way it was reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from idempotency import migrations as package
from idempotency.migrations._operations import SQL, RunPostgresFile

pytestmark = pytest.mark.django_db(transaction=True)

_POSTGRES_SCHEMA = """
    SELECT 'column', format('%s.%s %s %s %s', c.relname, a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relname LIKE 'idempotency%' AND NOT c.relispartition
    UNION ALL
    SELECT 'constraint', format('%s %s', conname, pg_get_constraintdef(x.oid))
    FROM pg_constraint x JOIN pg_class c ON c.oid = conrelid
    WHERE c.relname LIKE 'idempotency%' AND NOT c.relispartition
    UNION ALL
    SELECT 'index', pg_get_indexdef(i.indexrelid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE c.relname LIKE 'idempotency%' AND NOT c.relispartition
    UNION ALL
    SELECT 'function', pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'idempotency%'
    UNION ALL
    SELECT 'partition', format('%s of %s', inhrelid::regclass, inhparent::regclass)
    FROM pg_inherits JOIN pg_class c ON c.oid = inhparent
    WHERE c.relname LIKE 'idempotency%' AND c.relkind = 'p'
"""
_SQLITE_SCHEMA = """
    SELECT type, sql FROM sqlite_master WHERE tbl_name LIKE 'idempotency%' AND sql IS NOT NULL
"""


def schema() -> list[tuple[str, str]]:
    """Everything of ours in the database, in words."""
    with connection.cursor() as cursor:
        # No parameters, so that a % stays one.
        cursor.execute(_POSTGRES_SCHEMA if connection.vendor == "postgresql" else _SQLITE_SCHEMA)
        return sorted(cursor.fetchall())


@pytest.fixture
def migrated_again() -> Iterator[None]:
    """Whatever a test does, the next one finds the schema in place."""
    yield
    call_command("migrate", verbosity=0)


@pytest.mark.usefixtures("migrated_again")
def test_the_migrations_go_to_zero_and_forward_again_to_the_same_schema() -> None:
    before = schema()
    assert before

    call_command("migrate", "idempotency", "zero", verbosity=0)
    assert schema() == []

    call_command("migrate", "idempotency", verbosity=0)
    assert schema() == before


@pytest.mark.postgresql
@pytest.mark.usefixtures("migrated_again")
def test_a_detached_day_does_not_survive_the_way_to_zero() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT idempotency_ensure_day_v1('idempotency_keyevent', '2020-01-01')")
        cursor.execute(
            "ALTER TABLE idempotency_keyevent DETACH PARTITION idempotency_keyevent_p20200101"
        )

    call_command("migrate", "idempotency", "zero", verbosity=0)

    assert schema() == []


def test_no_change_of_a_model_lacks_its_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_every_sql_file_is_run_by_exactly_one_migration() -> None:
    loader = MigrationLoader(None)
    run = [
        name
        for (app, _), migration in loader.disk_migrations.items()
        if app == "idempotency"
        for operation in migration.operations
        if isinstance(operation, RunPostgresFile)
        for name in (operation.name, operation.undo)
        if name.isidentifier()
    ]

    assert sorted(run) == sorted(path.stem for path in SQL.glob("*.sql"))


def test_the_operations_survive_being_written_out_again() -> None:
    (path,) = Path(package.__path__[0]).glob("0001_*.py")
    loader = MigrationLoader(None)
    migration = loader.disk_migrations["idempotency", path.stem]

    for operation in migration.operations:
        name, args, kwargs = operation.deconstruct()
        assert name == type(operation).__name__
        again = type(operation)(*args, **kwargs)
        assert again.deconstruct() == (name, args, kwargs)
        assert again.describe()
