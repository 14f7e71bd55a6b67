from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY, which lets payments go on, cannot run in a transaction.
    atomic = False

    dependencies = [
        ("payments", "0004_webhooks"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name=name,
            index=models.Index(fields=["idempotency_key_id"], name=f"payments_{name}_key"),
        )
        for name in ("charge", "refund", "transfer")
    ]
