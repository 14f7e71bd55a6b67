"""The page between a choice in a list and what it does: what is meant, a reason, and yes or no."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse


def ask(
    model_admin: ModelAdmin[Any],
    request: HttpRequest,
    template: str,
    ids: list[int],
    **context: Any,
) -> TemplateResponse:
    """The page about the records of these ids."""
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "preserved_filters": model_admin.get_preserved_filters(request),
        "back": back(model_admin, request, ids),
        **context,
    }
    return TemplateResponse(request, f"admin/idempotency/{template}", context)


def back(model_admin: ModelAdmin[Any], request: HttpRequest, ids: list[int]) -> str:
    """The page of the one record, or the list as it was filtered."""
    page, arguments = ("change", ids) if len(ids) == 1 else ("changelist", [])
    name = f"admin:{model_admin.opts.app_label}_{model_admin.opts.model_name}_{page}"
    url = reverse(name, args=arguments, current_app=model_admin.admin_site.name)
    context: Any = {
        "preserved_filters": model_admin.get_preserved_filters(request),
        "opts": model_admin.opts,
    }
    kept: str = add_preserved_filters(context, url)
    return kept
