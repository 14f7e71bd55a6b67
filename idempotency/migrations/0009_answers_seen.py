from django.db import migrations, models


class Migration(migrations.Migration):
    # Whoever proposed against an answer did not say which, so it counts for none.
    dependencies = [
        ("idempotency", "0008_tenants_of_answers"),
    ]

    operations = [
        migrations.RemoveField(model_name="proposal", name="against"),
        migrations.AddField(
            model_name="proposal",
            name="against",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Proposed although the other side said otherwise.",
                max_length=300,
                verbose_name="against the answer",
            ),
        ),
    ]
