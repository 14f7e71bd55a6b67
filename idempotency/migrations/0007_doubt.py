from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("idempotency", "0006_operations"),
    ]

    operations = [
        migrations.CreateModel(
            name="Doubt",
            fields=[],
            options={
                "verbose_name": "in doubt queue",
                "verbose_name_plural": "in doubt queue",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("idempotency.idempotencykey",),
        ),
    ]
