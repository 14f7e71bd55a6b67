"""The rows of what differs: kept while it is there, closed when it is gone, handled by a person."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from payments.reconciliation.comparison import Difference
from payments.reconciliation.models import LedgerDifference

#: What makes two findings one difference.
IDENTITY = (
    "kind",
    "movement",
    "reference",
    "gateway_id",
    "amount_here",
    "currency_here",
    "amount_there",
    "currency_there",
)


def keep(
    found: Collection[Difference],
    *,
    since: datetime,
    until: datetime,
    unsure: Collection[str] = (),
) -> tuple[int, int]:
    """Write what was found in that time; how many are new, and how many are gone.

    What is there already stays as it is, handled or not. What was there and is not found is gone,
    unless its reference is ``unsure``: the gateway did not say. What comes back after it was gone
    is new.
    """
    now = timezone.now()
    with transaction.atomic():
        there = {_identity(row): row.pk for row in _there(since, until)}
        new = [it for it in found if _identity(it) not in there]
        # Another run may have written one meanwhile: the constraint lets the first one stand.
        LedgerDifference.objects.bulk_create(
            (LedgerDifference(**asdict(it), found_at=now) for it in new), ignore_conflicts=True
        )
        names = {_identity(it) for it in found}
        gone = [pk for identity, pk in there.items() if identity not in names]
        closed = LedgerDifference.objects.filter(pk__in=gone, gone_at__isnull=True)
        return len(new), closed.exclude(reference__in=unsure).update(gone_at=now)


def mark_handled(rows: QuerySet[LedgerDifference], *, by: str, reason: str) -> int:
    """Note that a person dealt with them, and how; how many were not handled before."""
    return rows.filter(handled_at__isnull=True).update(
        handled_at=timezone.now(), handled_by=by, handling=reason
    )


def _there(since: datetime, until: datetime) -> QuerySet[LedgerDifference]:
    return LedgerDifference.objects.filter(
        gone_at__isnull=True, moved_at__gte=since, moved_at__lt=until
    )


def _identity(it: Difference | LedgerDifference) -> tuple[object, ...]:
    return tuple(getattr(it, name) for name in IDENTITY)
