"""How the service stands, on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from idempotency import overview
from idempotency.admin.operations_page import page_of
from idempotency.models import Operations

if TYPE_CHECKING:
    ModelAdminOf = ModelAdmin[Operations]  # generic for the type checker only
else:
    ModelAdminOf = ModelAdmin


@admin.register(Operations)
class OperationsAdmin(ModelAdminOf):
    """One page in the place of a list. It needs ``view_operations``, and no permission to see
    keys: there is none on it."""

    class Media:
        css = {"all": ["idempotency/admin.css", "idempotency/operations.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [url for url in super().get_urls() if url.name == name]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": _("Operations"),
            "opts": self.opts,
            "media": self.media,
            **page_of(overview.read()),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        template = "admin/idempotency/operations/overview.html"
        return TemplateResponse(request, template, context)
