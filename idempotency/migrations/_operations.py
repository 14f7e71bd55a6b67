"""A table that is partitioned by day on PostgreSQL, an index beside traffic, and SQL from a named
file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import migrations, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

SQL = Path(__file__).resolve().parent.parent / "sql"


class CreateDayPartitioned(migrations.CreateModel):
    """CreateModel, except on PostgreSQL: there an SQL file makes the table."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        _, args, kwargs = super().deconstruct()
        return self.__class__.__qualname__, list(args), kwargs


class AddIndexAside(migrations.AddIndex):
    """AddIndex that lets others write meanwhile, on PostgreSQL. The migration must not be atomic.

    Cut short, it leaves an invalid index behind; the next run replaces that.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}", params=None)
        schema_editor.add_index(model, self.index, concurrently=True)  # type: ignore[call-arg]

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
        elif self.allow_migrate_model(
            schema_editor.connection.alias, from_state.apps.get_model(app_label, self.model_name)
        ):
            schema_editor.execute(f"DROP INDEX CONCURRENTLY {self.index.name}", params=None)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        _, args, kwargs = super().deconstruct()
        return self.__class__.__qualname__, list(args), kwargs


class RunPostgresFile(Operation):
    """Runs ``sql/<name>.sql`` on PostgreSQL and ``undo`` on the way back; nothing elsewhere.

    ``undo`` is a statement, or the name of another file.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, name: str, undo: str) -> None:
        self.name = name
        self.undo = undo

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Functions are unknown to Django's state."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._run(app_label, schema_editor, self._text(self.name))

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._run(app_label, schema_editor, self._text(self.undo))

    def describe(self) -> str:
        return f"Run {self.name}.sql on PostgreSQL"

    @staticmethod
    def _text(sql: str) -> str:
        return (SQL / f"{sql}.sql").read_text() if sql.isidentifier() else sql

    def _run(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, sql: str) -> None:
        connection = schema_editor.connection
        if connection.vendor == "postgresql" and router.allow_migrate(connection.alias, app_label):
            schema_editor.execute(sql, params=None)
