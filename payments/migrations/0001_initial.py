import functools

import django.db.models.deletion
from django.db import migrations, models

import payments.ids


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Merchant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=functools.partial(payments.ids.new_id, *("acct",)),
                        editable=False,
                        max_length=29,
                        verbose_name="public id",
                    ),
                ),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
            ],
            options={
                "verbose_name": "merchant",
                "verbose_name_plural": "merchants",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("public_id",), name="payments_merchant_public_id_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="LedgerAccount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("merchant", "merchant"),
                            ("gateway_clearing", "gateway clearing"),
                            ("refunds_pending", "refunds pending"),
                            ("funding", "funding"),
                        ],
                        max_length=32,
                        verbose_name="kind",
                    ),
                ),
                ("currency", models.CharField(max_length=3, verbose_name="currency")),
                ("balance", models.BigIntegerField(blank=True, null=True, verbose_name="balance")),
                (
                    "merchant",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="accounts",
                        to="payments.merchant",
                    ),
                ),
            ],
            options={
                "verbose_name": "ledger account",
                "verbose_name_plural": "ledger accounts",
            },
        ),
        migrations.CreateModel(
            name="Charge",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "amount",
                    models.BigIntegerField(help_text="In minor units.", verbose_name="amount"),
                ),
                ("currency", models.CharField(max_length=3, verbose_name="currency")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "public_id",
                    models.CharField(
                        default=functools.partial(payments.ids.new_id, *("ch",)),
                        editable=False,
                        max_length=27,
                        verbose_name="public id",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("succeeded", "succeeded"),
                            ("declined", "declined"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="pending",
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                (
                    "amount_refunded",
                    models.BigIntegerField(default=0, verbose_name="amount refunded"),
                ),
                (
                    "description",
                    models.CharField(blank=True, max_length=500, verbose_name="description"),
                ),
                ("metadata", models.JSONField(blank=True, default=dict, verbose_name="metadata")),
                (
                    "gateway_reference",
                    models.CharField(blank=True, max_length=255, verbose_name="gateway reference"),
                ),
                (
                    "decline_code",
                    models.CharField(blank=True, max_length=64, verbose_name="decline code"),
                ),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                (
                    "merchant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="charges",
                        to="payments.merchant",
                    ),
                ),
            ],
            options={
                "verbose_name": "charge",
                "verbose_name_plural": "charges",
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("prefix", models.CharField(max_length=12, verbose_name="prefix")),
                ("digest", models.CharField(editable=False, max_length=64, verbose_name="digest")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("revoked", models.DateTimeField(blank=True, null=True, verbose_name="revoked")),
                (
                    "merchant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="api_keys",
                        to="payments.merchant",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "verbose_name_plural": "API keys",
            },
        ),
        migrations.CreateModel(
            name="Refund",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "amount",
                    models.BigIntegerField(help_text="In minor units.", verbose_name="amount"),
                ),
                ("currency", models.CharField(max_length=3, verbose_name="currency")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "public_id",
                    models.CharField(
                        default=functools.partial(payments.ids.new_id, *("re",)),
                        editable=False,
                        max_length=27,
                        verbose_name="public id",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="pending",
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                (
                    "gateway_reference",
                    models.CharField(blank=True, max_length=255, verbose_name="gateway reference"),
                ),
                (
                    "failure_code",
                    models.CharField(blank=True, max_length=64, verbose_name="failure code"),
                ),
                (
                    "charge",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="refunds",
                        to="payments.charge",
                    ),
                ),
            ],
            options={
                "verbose_name": "refund",
                "verbose_name_plural": "refunds",
            },
        ),
        migrations.CreateModel(
            name="Transfer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "amount",
                    models.BigIntegerField(help_text="In minor units.", verbose_name="amount"),
                ),
                ("currency", models.CharField(max_length=3, verbose_name="currency")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "public_id",
                    models.CharField(
                        default=functools.partial(payments.ids.new_id, *("tr",)),
                        editable=False,
                        max_length=27,
                        verbose_name="public id",
                    ),
                ),
                (
                    "description",
                    models.CharField(blank=True, max_length=500, verbose_name="description"),
                ),
                (
                    "recipient",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="transfers_received",
                        to="payments.merchant",
                    ),
                ),
                (
                    "sender",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="transfers_sent",
                        to="payments.merchant",
                    ),
                ),
            ],
            options={
                "verbose_name": "transfer",
                "verbose_name_plural": "transfers",
            },
        ),
        migrations.CreateModel(
            name="LedgerTransaction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("charge", "charge"),
                            ("refund_hold", "refund hold"),
                            ("refund_settlement", "refund settlement"),
                            ("refund_return", "refund return"),
                            ("transfer", "transfer"),
                            ("funding", "funding"),
                        ],
                        max_length=32,
                        verbose_name="kind",
                    ),
                ),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "charge",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="postings",
                        to="payments.charge",
                    ),
                ),
                (
                    "refund",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="postings",
                        to="payments.refund",
                    ),
                ),
                (
                    "transfer",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="postings",
                        to="payments.transfer",
                    ),
                ),
            ],
            options={
                "verbose_name": "ledger transaction",
                "verbose_name_plural": "ledger transactions",
            },
        ),
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("endpoint_id", models.CharField(max_length=64, verbose_name="id")),
                ("url", models.CharField(max_length=2048, verbose_name="URL")),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "merchant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="webhook_endpoints",
                        to="payments.merchant",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook endpoint",
                "verbose_name_plural": "webhook endpoints",
            },
        ),
        migrations.CreateModel(
            name="LedgerEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "amount",
                    models.BigIntegerField(
                        help_text="In minor units; a debit is minus.", verbose_name="amount"
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="entries",
                        to="payments.ledgeraccount",
                    ),
                ),
                (
                    "transaction",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="entries",
                        to="payments.ledgertransaction",
                    ),
                ),
            ],
            options={
                "verbose_name": "ledger entry",
                "verbose_name_plural": "ledger entries",
                "indexes": [
                    models.Index(fields=["account", "-id"], name="payments_ledgerentry_account")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount", 0), _negated=True),
                        name="payments_ledgerentry_amount_not_zero",
                    ),
                    models.UniqueConstraint(
                        fields=("transaction", "account"), name="payments_ledgerentry_account_once"
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="ledgeraccount",
            constraint=models.CheckConstraint(
                condition=models.Q(("balance__gte", 0)),
                name="payments_ledgeraccount_balance_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgeraccount",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("balance__isnull", False),
                        ("kind", "merchant"),
                        ("merchant__isnull", False),
                    ),
                    models.Q(
                        models.Q(("kind", "merchant"), _negated=True),
                        ("balance__isnull", True),
                        ("merchant__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="payments_ledgeraccount_owner_matches_kind",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgeraccount",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")),
                name="payments_ledgeraccount_currency_code",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgeraccount",
            constraint=models.UniqueConstraint(
                condition=models.Q(("merchant__isnull", False)),
                fields=("merchant", "currency"),
                name="payments_ledgeraccount_merchant_unique",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgeraccount",
            constraint=models.UniqueConstraint(
                condition=models.Q(("merchant__isnull", True)),
                fields=("kind", "currency"),
                name="payments_ledgeraccount_kind_unique",
            ),
        ),
        migrations.AddIndex(
            model_name="charge",
            index=models.Index(fields=["merchant", "-created", "-id"], name="payments_charge_page"),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount__gt", 0), ("amount__lte", 999999999999)),
                name="payments_charge_amount_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")),
                name="payments_charge_currency_code",
            ),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.UniqueConstraint(
                fields=("public_id",), name="payments_charge_public_id_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("status__in", ["pending", "succeeded", "declined", "withdrawn"])
                ),
                name="payments_charge_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount_refunded__gte", 0), ("amount_refunded__lte", models.F("amount"))
                ),
                name="payments_charge_refunded_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="charge",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount_refunded", 0), ("status", "succeeded"), _connector="OR"
                ),
                name="payments_charge_refunded_when_succeeded",
            ),
        ),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.UniqueConstraint(
                fields=("digest",), name="payments_apikey_digest_unique"
            ),
        ),
        migrations.AddIndex(
            model_name="refund",
            index=models.Index(fields=["charge", "-created", "-id"], name="payments_refund_page"),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount__gt", 0), ("amount__lte", 999999999999)),
                name="payments_refund_amount_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")),
                name="payments_refund_currency_code",
            ),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.UniqueConstraint(
                fields=("public_id",), name="payments_refund_public_id_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.CheckConstraint(
                condition=models.Q(("status__in", ["pending", "succeeded", "failed", "withdrawn"])),
                name="payments_refund_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount__gt", 0), ("amount__lte", 999999999999)),
                name="payments_transfer_amount_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.CheckConstraint(
                condition=models.Q(("currency__regex", "^[A-Z]{3}$")),
                name="payments_transfer_currency_code",
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.UniqueConstraint(
                fields=("public_id",), name="payments_transfer_public_id_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.CheckConstraint(
                condition=models.Q(("sender", models.F("recipient")), _negated=True),
                name="payments_transfer_two_accounts",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgertransaction",
            constraint=models.UniqueConstraint(
                condition=models.Q(("charge__isnull", False)),
                fields=("charge",),
                name="payments_ledgertransaction_charge_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgertransaction",
            constraint=models.UniqueConstraint(
                condition=models.Q(("transfer__isnull", False)),
                fields=("transfer",),
                name="payments_ledgertransaction_transfer_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgertransaction",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "refund_hold")),
                fields=("refund",),
                name="payments_ledgertransaction_refund_held_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgertransaction",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind__in", ["refund_settlement", "refund_return"])),
                fields=("refund",),
                name="payments_ledgertransaction_refund_ended_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookendpoint",
            constraint=models.UniqueConstraint(
                fields=("merchant", "endpoint_id"), name="payments_webhookendpoint_id_unique"
            ),
        ),
    ]
