from django.db import migrations, models


class Migration(migrations.Migration):
    # On PostgreSQL a column with a constant default rewrites no row, of no day.
    dependencies = [
        ("idempotency", "0007_doubt"),
    ]

    operations = [
        migrations.AddField(
            model_name="storedresponse",
            name="tenant",
            field=models.CharField(
                db_default="", default="", max_length=255, verbose_name="tenant"
            ),
        ),
    ]
