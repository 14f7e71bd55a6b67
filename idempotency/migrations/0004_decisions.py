from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("idempotency", "0003_reconciliation"),
    ]

    operations = [
        migrations.CreateModel(
            name="Proposal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key_id", models.BigIntegerField(db_index=True, verbose_name="key")),
                ("owner", models.UUIDField(verbose_name="owner seen")),
                ("state", models.CharField(max_length=16, verbose_name="state seen")),
                (
                    "recovery_point",
                    models.CharField(max_length=64, verbose_name="recovery point seen"),
                ),
                (
                    "choice",
                    models.CharField(
                        choices=[
                            ("succeeded", "succeeded"),
                            ("refused", "refused"),
                            ("never_happened", "never happened"),
                            ("free", "free for retry"),
                            ("final", "final"),
                        ],
                        max_length=16,
                        verbose_name="decision",
                    ),
                ),
                (
                    "result",
                    models.JSONField(
                        default=dict,
                        help_text="What is to be written, as the other side's answer.",
                        verbose_name="result",
                    ),
                ),
                (
                    "against",
                    models.BooleanField(
                        default=False,
                        help_text="Proposed although the other side said otherwise.",
                        verbose_name="against the answer",
                    ),
                ),
                ("amount", models.CharField(blank=True, max_length=100, verbose_name="amount")),
                ("reason", models.CharField(max_length=500, verbose_name="reason")),
                ("proposed_by", models.CharField(max_length=150, verbose_name="proposed by")),
                (
                    "proposer_id",
                    models.CharField(
                        blank=True,
                        help_text="Of the user; empty from a command.",
                        max_length=64,
                        verbose_name="proposer",
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("open", "waits for another person"),
                            ("approved", "approved and carried out"),
                            ("rejected", "rejected"),
                            ("overtaken", "overtaken"),
                        ],
                        default="open",
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                (
                    "decided_by",
                    models.CharField(
                        blank=True, default="", max_length=150, verbose_name="decided by"
                    ),
                ),
                ("decided_at", models.DateTimeField(null=True, verbose_name="decided at")),
                (
                    "decided_reason",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="reason given"
                    ),
                ),
            ],
            options={
                "verbose_name": "proposal",
                "verbose_name_plural": "proposals",
                "permissions": [("approve_proposal", "Can approve what another person proposed")],
            },
        ),
        migrations.AlterModelOptions(
            name="idempotencykey",
            options={
                "permissions": [
                    ("force_fail_idempotencykey", "Can force-fail an idempotency key"),
                    ("view_response_body", "Can see stored response bodies"),
                    ("ask_idempotencykey", "Can ask the other side about an operation"),
                    ("settle_idempotencykey", "Can settle an operation whose outcome is open"),
                ],
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
            },
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="operation",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The one that passed the recovery point.",
                max_length=255,
                verbose_name="operation",
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="prepared_attempt",
            field=models.IntegerField(
                help_text="The one that wrote the intent.",
                null=True,
                verbose_name="prepared by attempt",
            ),
        ),
        migrations.AlterField(
            model_name="keyevent",
            name="kind",
            field=models.CharField(
                choices=[
                    ("takeover", "taken over"),
                    ("reclaimed", "reclaimed"),
                    ("force_failed", "force-failed"),
                    ("in_doubt", "in doubt"),
                    ("resolved", "resolved"),
                    ("suspended", "left open"),
                    ("withdrawn", "withdrawn"),
                    ("asked", "asked"),
                    ("proposed", "proposed"),
                    ("rejected", "rejected"),
                    ("reused", "reused after expiry"),
                    ("day_missing", "day missing"),
                ],
                max_length=32,
                verbose_name="kind",
            ),
        ),
        migrations.AddIndex(
            model_name="proposal",
            index=models.Index(
                condition=models.Q(("status", "open")),
                fields=["created_at"],
                name="idempotency_proposal_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="proposal",
            constraint=models.CheckConstraint(
                condition=models.Q(("status__in", ["open", "approved", "rejected", "overtaken"])),
                name="idempotency_proposal_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="proposal",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status", "approved"), _negated=True),
                    models.Q(("decided_by", models.F("proposed_by")), _negated=True),
                    _connector="OR",
                ),
                name="idempotency_proposal_four_eyes",
            ),
        ),
        migrations.AddConstraint(
            model_name="proposal",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", "open")),
                fields=("key_id",),
                name="idempotency_proposal_one_open",
            ),
        ),
    ]
