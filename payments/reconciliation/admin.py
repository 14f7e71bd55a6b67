"""The list of differences that an operator works through."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from payments import currencies
from payments.models import Charge, Refund
from payments.reconciliation import differences
from payments.reconciliation.models import LedgerDifference


class StandingFilter(admin.SimpleListFilter):
    """What is to be worked on; each choice is served by the partial index."""

    title = gettext_lazy("standing")
    parameter_name = "standing"

    OPEN, HANDLED, GONE = "open", "handled", "gone"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            (self.OPEN, gettext_lazy("open")),
            (self.HANDLED, gettext_lazy("handled, and still there")),
            (self.GONE, gettext_lazy("gone")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        conditions = {
            self.OPEN: {"gone_at__isnull": True, "handled_at__isnull": True},
            self.HANDLED: {"gone_at__isnull": True, "handled_at__isnull": False},
            self.GONE: {"gone_at__isnull": False},
        }
        condition = conditions.get(self.value() or "")
        return None if condition is None else queryset.filter(**condition)


class HandlingForm(ActionForm):
    """Beside the action: what was done about it."""

    reason = forms.CharField(
        label=gettext_lazy("How it was handled:"), max_length=1000, required=False
    )


def handle(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[LedgerDifference]
) -> None:
    """Mark the ticked rows as handled, with the reason that was given beside the action."""
    reason = request.POST.get("reason", "").replace("\0", "").strip()[:1000]
    if not reason:
        model_admin.message_user(
            request, _("Say how it was handled. Nothing was marked."), messages.ERROR
        )
        return
    ticked = list(rows)
    marked = differences.mark_handled(rows, by=request.user.get_username(), reason=reason)
    for row in ticked:
        if row.handled_at is None:
            model_admin.log_change(request, row, reason)
    text = ngettext("%d difference marked as handled.", "%d differences marked as handled.", marked)
    model_admin.message_user(request, text % marked, messages.SUCCESS)


def money(amount: int, currency: str) -> str:
    """An amount of one side; a dash where nothing moved."""
    return currencies.format_amount(amount=amount, currency=currency) if amount else "-"


def subject_of(row: LedgerDifference) -> Charge | Refund | None:
    """Our charge or refund that the difference is about."""
    model = Charge if row.movement == LedgerDifference.Movement.CHARGE else Refund
    return model.objects.filter(public_id=row.reference).first() if row.reference else None
