from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("payments", "0002_ledger_rules"),
    ]

    operations = [
        migrations.AddField(
            model_name="charge",
            name="idempotency_key_id",
            field=models.BigIntegerField(editable=False, null=True, verbose_name="idempotency key"),
        ),
        migrations.AddField(
            model_name="refund",
            name="idempotency_key_id",
            field=models.BigIntegerField(editable=False, null=True, verbose_name="idempotency key"),
        ),
        migrations.AddField(
            model_name="transfer",
            name="idempotency_key_id",
            field=models.BigIntegerField(editable=False, null=True, verbose_name="idempotency key"),
        ),
        migrations.CreateModel(
            name="LedgerDifference",
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
                            ("missing_here", "missing here"),
                            ("missing_there", "missing there"),
                            ("amount_differs", "amount differs"),
                            ("double", "double"),
                        ],
                        max_length=16,
                        verbose_name="kind",
                    ),
                ),
                (
                    "movement",
                    models.CharField(
                        choices=[("charge", "charge"), ("refund", "refund")],
                        max_length=16,
                        verbose_name="movement",
                    ),
                ),
                (
                    "reference",
                    models.CharField(
                        blank=True,
                        help_text="Our id, where one is known.",
                        max_length=255,
                        verbose_name="reference",
                    ),
                ),
                (
                    "gateway_id",
                    models.CharField(blank=True, max_length=255, verbose_name="gateway id"),
                ),
                (
                    "amount_here",
                    models.BigIntegerField(
                        default=0,
                        help_text="In minor units; 0: nothing moved here.",
                        verbose_name="amount here",
                    ),
                ),
                (
                    "currency_here",
                    models.CharField(blank=True, max_length=3, verbose_name="currency here"),
                ),
                (
                    "amount_there",
                    models.BigIntegerField(
                        default=0,
                        help_text="In minor units; 0: nothing moved there.",
                        verbose_name="amount there",
                    ),
                ),
                (
                    "currency_there",
                    models.CharField(blank=True, max_length=3, verbose_name="currency there"),
                ),
                (
                    "moved_at",
                    models.DateTimeField(
                        help_text="By the gateway's clock; by ours where it has nothing.",
                        verbose_name="moved at",
                    ),
                ),
                ("found_at", models.DateTimeField(verbose_name="found at")),
                (
                    "gone_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When a comparison no longer found it.",
                        null=True,
                        verbose_name="gone at",
                    ),
                ),
                (
                    "handled_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="handled at"),
                ),
                (
                    "handled_by",
                    models.CharField(blank=True, max_length=150, verbose_name="handled by"),
                ),
                (
                    "handling",
                    models.CharField(
                        blank=True, max_length=1000, verbose_name="how it was handled"
                    ),
                ),
            ],
            options={
                "verbose_name": "ledger difference",
                "verbose_name_plural": "ledger differences",
                "permissions": [
                    ("handle_ledgerdifference", "Can mark a ledger difference as handled")
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("gone_at__isnull", True)),
                        fields=["moved_at"],
                        name="payments_difference_there",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                ["missing_here", "missing_there", "amount_differs", "double"],
                            )
                        ),
                        name="payments_ledgerdifference_kind_known",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("gone_at__isnull", True)),
                        fields=(
                            "kind",
                            "movement",
                            "reference",
                            "gateway_id",
                            "amount_here",
                            "currency_here",
                            "amount_there",
                            "currency_there",
                        ),
                        name="payments_ledgerdifference_once_while_there",
                    ),
                ],
            },
        ),
    ]
