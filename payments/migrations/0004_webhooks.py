from django.db import migrations, models

import payments.webhooks.signatures


def give_secrets(apps, schema_editor):
    """A secret of its own for each endpoint there is: a default would be the same for all."""
    endpoints = apps.get_model("payments", "WebhookEndpoint")._default_manager
    for endpoint in endpoints.using(schema_editor.connection.alias).iterator():
        endpoint.secret = payments.webhooks.signatures.new_secret()
        endpoint.save(update_fields=["secret"])


class Migration(migrations.Migration):
    dependencies = [
        ("payments", "0003_reconciliation"),
    ]

    operations = [
        migrations.AddField(
            model_name="webhookendpoint",
            name="enabled",
            field=models.BooleanField(
                default=True,
                help_text="Off when its merchant says so, or when it answered 410 Gone.",
                verbose_name="enabled",
            ),
        ),
        migrations.AddField(
            model_name="webhookendpoint",
            name="secret",
            field=models.CharField(
                default="", editable=False, max_length=64, verbose_name="secret"
            ),
        ),
        migrations.RunPython(give_secrets, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="secret",
            field=models.CharField(
                default=payments.webhooks.signatures.new_secret,
                editable=False,
                max_length=64,
                verbose_name="secret",
            ),
        ),
    ]
