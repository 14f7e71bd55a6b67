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
        from idempotency import checks, logs, metrics  # noqa: F401  they register themselves

        # An operation is resumed by its name, and a message delivered by its channel's, days later
        # and in another process: every process has to know them all.
        autodiscover_modules("operations", "outbox")
