from django.db import migrations

from payments.sql import run_sql


class Migration(migrations.Migration):
    dependencies = [("payments", "0001_initial")]

    operations = [
        run_sql("ledger_balanced_v1"),
        run_sql("ledger_append_only_v1"),
        run_sql("ledger_balance_v1"),
    ]
