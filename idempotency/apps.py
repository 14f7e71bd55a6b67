from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class IdempotencyConfig(AppConfig):
    name = "idempotency"
    label = "idempotency"
    verbose_name = _("Idempotency")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # They register themselves.
        from idempotency import checks, logs, metrics, replays  # noqa: F401
        from idempotency.outbox import checks as _checks  # noqa: F401
        from idempotency.outbox import metrics as _metrics  # noqa: F401

        # An operation is resumed by its name, and a message delivered by its channel's, days later
        # and in another process: every process has to know them all.
        autodiscover_modules("operations", "outbox")
