from django.db import migrations, models

from idempotency.migrations._operations import AddIndexAside


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY cannot run in a transaction.
    atomic = False

    dependencies = [
        ("idempotency", "0004_decisions"),
    ]

    operations = [
        AddIndexAside(
            model_name="idempotencykey",
            index=models.Index(
                condition=models.Q(
                    ("recovery_point_at__isnull", False), ("state__in", ["processing", "in_doubt"])
                ),
                fields=["recovery_point_at", "id"],
                name="idempotency_key_open_operation",
            ),
        ),
    ]
