from __future__ import annotations

from django.db import migrations, models

from idempotency.migrations._operations import CreateDayPartitioned, RunPostgresFile


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        CreateDayPartitioned(
            name="KeyEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(verbose_name="day")),
                ("key_id", models.BigIntegerField(db_index=True, verbose_name="key")),
                ("at", models.DateTimeField(verbose_name="at")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("takeover", "taken over"),
                            ("reclaimed", "reclaimed"),
                            ("force_failed", "force-failed"),
                            ("in_doubt", "in doubt"),
                            ("resolved", "resolved"),
                            ("reused", "reused after expiry"),
                            ("day_missing", "day missing"),
                        ],
                        max_length=32,
                        verbose_name="kind",
                    ),
                ),
                ("attempt", models.PositiveIntegerField(default=0, verbose_name="attempt")),
                (
                    "actor",
                    models.CharField(blank=True, default="", max_length=150, verbose_name="actor"),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, default="", max_length=1000, verbose_name="reason"
                    ),
                ),
                ("data", models.JSONField(default=dict, verbose_name="data")),
            ],
            options={
                "verbose_name": "key event",
                "verbose_name_plural": "key events",
            },
        ),
        CreateDayPartitioned(
            name="StoredResponse",
            fields=[
                (
                    "key_id",
                    models.BigIntegerField(primary_key=True, serialize=False, verbose_name="key"),
                ),
                ("day", models.DateField(verbose_name="day")),
                ("status", models.PositiveSmallIntegerField(verbose_name="status")),
                ("headers", models.JSONField(default=list, verbose_name="headers")),
                (
                    "body",
                    models.BinaryField(
                        help_text="Empty when too large or streamed.",
                        null=True,
                        verbose_name="body",
                    ),
                ),
            ],
            options={
                "verbose_name": "stored response",
                "verbose_name_plural": "stored responses",
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.BinaryField(max_length=32, unique=True, verbose_name="digest")),
                ("key", models.CharField(max_length=255, verbose_name="key")),
                ("route", models.CharField(max_length=255, verbose_name="route")),
                ("tenant", models.CharField(max_length=255, verbose_name="tenant")),
                ("fingerprint", models.BinaryField(max_length=32, verbose_name="fingerprint")),
                (
                    "fingerprint_version",
                    models.SmallIntegerField(verbose_name="fingerprint version"),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("processing", "processing"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("in_doubt", "in doubt"),
                        ],
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                (
                    "owner",
                    models.UUIDField(
                        help_text="The attempt that may write; every write names it.",
                        verbose_name="owner",
                    ),
                ),
                ("attempt", models.IntegerField(default=1, verbose_name="attempt")),
                (
                    "resumes",
                    models.IntegerField(
                        default=0,
                        help_text="How often a job resumed the operation since its recovery point.",
                        verbose_name="resumes",
                    ),
                ),
                (
                    "lease_expires_at",
                    models.DateTimeField(null=True, verbose_name="lease expires at"),
                ),
                (
                    "recovery_point",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="recovery point"
                    ),
                ),
                ("context", models.JSONField(null=True, verbose_name="context")),
                (
                    "failure",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="failure"
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("completed_at", models.DateTimeField(null=True, verbose_name="completed at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("response_day", models.DateField(verbose_name="day of the response")),
            ],
            options={
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
                "permissions": [
                    ("force_fail_idempotencykey", "Can force-fail an idempotency key"),
                    ("view_response_body", "Can see stored response bodies"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["processing", "in_doubt"])),
                        fields=["lease_expires_at"],
                        name="idempotency_key_lease",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_expires_at__isnull", False), ("state", "processing")),
                            models.Q(
                                ("lease_expires_at__isnull", True),
                                models.Q(
                                    ("state", "in_doubt"),
                                    models.Q(("expires_at__isnull", False), ("state", "succeeded")),
                                    models.Q(("expires_at__isnull", False), ("state", "failed")),
                                    _connector="OR",
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="idempotency_key_state",
                    ),
                ],
            },
        ),
        RunPostgresFile(
            "tables_v1",
            undo="DROP TABLE idempotency_keyevent; DROP TABLE idempotency_storedresponse",
        ),
        RunPostgresFile("ensure_day_v1", undo="DROP FUNCTION idempotency_ensure_day_v1"),
        RunPostgresFile("newest_day_v1", undo="DROP FUNCTION idempotency_newest_day_v1"),
        RunPostgresFile("record_event_v1", undo="DROP FUNCTION idempotency_record_event_v1"),
        RunPostgresFile("claim_v1", undo="DROP FUNCTION idempotency_claim_v1"),
        RunPostgresFile("complete_v1", undo="DROP FUNCTION idempotency_complete_v1"),
        RunPostgresFile("first_days_v1", undo="forget_days_v1"),
    ]
