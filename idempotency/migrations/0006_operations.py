from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("idempotency", "0005_open_operations"),
    ]

    operations = [
        migrations.CreateModel(
            name="Operations",
            fields=[],
            options={
                "verbose_name": "operations overview",
                "verbose_name_plural": "operations overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("idempotency.idempotencykey",),
        ),
    ]
