from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("idempotency", "0002_outbox"),
    ]

    operations = [
        migrations.AddField(
            model_name="idempotencykey",
            name="look_up_at",
            field=models.DateTimeField(
                help_text="When the other side is next asked about the call; empty: at once.",
                null=True,
                verbose_name="look up at",
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="recovery_point_at",
            field=models.DateTimeField(
                help_text="From then on the outside call may have been made.",
                null=True,
                verbose_name="recovery point at",
            ),
        ),
    ]
