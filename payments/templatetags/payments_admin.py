"""What the admin's pages of keys show of this product; see the project's `templates/`."""

from typing import Any

from django import template
from django.template import Context
from django.urls import reverse

from payments.models import Charge, LedgerDifference, LedgerTransaction, Movement, Refund, Transfer
from payments.reconciliation.admin import StandingFilter

register = template.Library()

#: Movements of one key that are shown. More than one is the exception: an intent that was withdrawn
#: and prepared anew.
MOST = 20
#: Differences are counted no further.
MOST_DIFFERENCES = 100


@register.simple_tag(takes_context=True)
def movements_of_key(context: Context, key_id: int) -> list[dict[str, Any]]:
    """The charges, refunds and transfers that a key asked for, as far as the viewer may see them,
    each with its postings; None where he may not see those."""
    may = context["request"].user.has_perm
    found = []
    for model in (Charge, Refund, Transfer):
        if may(f"payments.view_{model._meta.model_name}"):
            found += model.objects.filter(idempotency_key_id=key_id).order_by("pk")[:MOST]
    see_ledger = may("payments.view_ledgertransaction")
    return [
        {"it": it, "url": url_of(it), "postings": _postings(it) if see_ledger else None}
        for it in found
    ]


def url_of(movement: Movement) -> str:
    """The movement's page in the admin."""
    return reverse(f"admin:payments_{movement._meta.model_name}_change", args=[movement.pk])


@register.simple_tag
def open_differences() -> tuple[int, int, str]:
    """How many differences between the ledgers wait for somebody, counted up to a bound; the
    bound; and the query that lists them."""
    waiting = LedgerDifference.objects.filter(gone_at__isnull=True, handled_at__isnull=True)
    number = waiting.order_by()[: MOST_DIFFERENCES + 1].count()
    query = f"{StandingFilter.parameter_name}={StandingFilter.OPEN}"
    return number, MOST_DIFFERENCES, query


def _postings(movement: Movement) -> list[LedgerTransaction]:
    name = str(movement._meta.model_name)
    postings = LedgerTransaction.objects.filter(**{name: movement}).order_by("pk")
    return list(postings.prefetch_related("entries__account__merchant")[:MOST])
