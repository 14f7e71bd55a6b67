"""The audit trail: a list to read, by key or by time."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from idempotency.admin.cells import stamp
from idempotency.admin.changelists import LargeTableAdmin
from idempotency.admin.seen import record_number
from idempotency.admin.times import utc
from idempotency.models import KeyEvent


@admin.register(KeyEvent)
class KeyEventAdmin(LargeTableAdmin):
    """Events have no page of their own: their table is partitioned by day, and a look-up by id
    alone would visit every day."""

    list_display = ("when", "kind", "key_link", "attempt", "actor", "reason")
    list_display_links = None
    list_filter = ("kind",)
    search_fields = ("key_id",)
    search_help_text = _("The number of a key's record, as its page shows it.")
    # The primary key in the database. By id alone PostgreSQL would have to sort every day.
    keyset = ("day", "id")

    def get_urls(self) -> list[URLPattern]:
        return [url for url in super().get_urls() if url.name == self._list_name]

    @property
    def _list_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_changelist"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        number = record_number(term)
        found = queryset.none() if number is None else queryset.filter(key_id=number)
        return found, False

    @admin.display(description=_("at"))
    def when(self, event: KeyEvent) -> SafeString:
        return stamp(utc(event.at), event.at)

    @admin.display(description=_("key"))
    def key_link(self, event: KeyEvent) -> SafeString:
        url = reverse(
            "admin:idempotency_idempotencykey_change",
            args=[event.key_id],
            current_app=self.admin_site.name,
        )
        return format_html('<a href="{}">{}</a>', url, event.key_id)
