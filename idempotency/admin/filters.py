"""The filters of the keys' list. None of them counts or reads a whole table to be shown."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from idempotency.core.states import State
from idempotency.search import recent_routes
from idempotency.stores import clock


class RouteFilter(SimpleListFilter):
    """The routes of the newest keys."""

    title = _("route")
    parameter_name = "route"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        routes = recent_routes(model_admin.get_queryset(request).db)
        chosen = self.value()
        if chosen and chosen not in routes:
            routes.append(chosen)
        return [(route, route) for route in routes]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        return queryset.filter(route=self.value()) if self.value() else None


class AttentionFilter(SimpleListFilter):
    """What an operator looks for. Each choice is served by a partial index."""

    title = _("attention")
    parameter_name = "attention"

    STUCK, TAKEN_OVER, IN_DOUBT = "stuck", "taken_over", "in_doubt"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return [
            (self.STUCK, _("stuck: processing, lease over")),
            (self.TAKEN_OVER, _("processing, second attempt or later")),
            (self.IN_DOUBT, _("in doubt")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        conditions = {
            self.STUCK: Q(state=State.PROCESSING.value, lease_expires_at__lte=clock.now()),
            self.TAKEN_OVER: Q(state=State.PROCESSING.value, attempt__gt=1),
            self.IN_DOUBT: Q(state=State.IN_DOUBT.value),
        }
        condition = conditions.get(self.value() or "")
        return None if condition is None else queryset.filter(condition)
