"""Named SQL files, and the migration operation that runs one."""

from collections.abc import Callable
from pathlib import Path

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import RunPython
from django.db.migrations.state import StateApps

_FOLDER = Path(__file__).parent


def read(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def run_sql(name: str) -> RunPython:
    """Run `name.sql` forwards and `name_drop.sql` backwards, on PostgreSQL; elsewhere do nothing.

    Without these triggers a database keeps no balances, so the product needs PostgreSQL; the guard
    only lets `migrate` run anywhere, for a look at the models or the admin.
    """

    def runner(file: str) -> Callable[[StateApps, BaseDatabaseSchemaEditor], None]:
        def execute(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
            if schema_editor.connection.vendor == "postgresql":
                # No parameters: psycopg then sends the file as it is, `%` included.
                schema_editor.execute(read(file), params=None)

        return execute

    return RunPython(runner(name), runner(f"{name}_drop"))
