from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class AddIndexAside(AddIndexConcurrently):
    """Lets payments go on, on PostgreSQL; elsewhere like any index."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        kind = self._kind(schema_editor)
        kind.database_forwards(self, app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        kind = self._kind(schema_editor)
        kind.database_backwards(self, app_label, schema_editor, *states)

    @staticmethod
    def _kind(schema_editor: Any) -> type[migrations.AddIndex]:
        on_postgresql = schema_editor.connection.vendor == "postgresql"
        return AddIndexConcurrently if on_postgresql else migrations.AddIndex


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY cannot run in a transaction.
    atomic = False

    dependencies = [
        ("payments", "0004_webhooks"),
    ]

    operations = [
        AddIndexAside(
            model_name=name,
            index=models.Index(fields=["idempotency_key_id"], name=f"payments_{name}_key"),
        )
        for name in ("charge", "refund", "transfer")
    ]
