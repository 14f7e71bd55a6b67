"""Our side of what went through the gateway: charges, refunds, and what the ledger has of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from payments.gateways.base import Task
from payments.models import Charge, LedgerAccount, LedgerEntry, LedgerTransaction, Refund

#: Rows read at once.
BATCH = 500
#: Postings are walked by their ids, newest first. A transaction that was under way for a while has
#: a time before that of its neighbours: the walk goes on for so long behind its end.
DISORDER = timedelta(hours=1)

_OUR_SIDE = {
    "charge": LedgerTransaction.Kind.CHARGE,
    "refund": LedgerTransaction.Kind.REFUND_SETTLEMENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A charge or a refund of ours. ``amount`` and ``currency`` are the ledger's; 0 and empty while
    it has no posting."""

    kind: Task
    reference: str
    #: Of the movement that it became, or is refunded from.
    gateway_id: str
    charge_gateway_id: str
    is_pending: bool
    created: datetime
    amount: int = 0
    currency: str = ""
    posted: datetime | None = None


def records(kind: Task, references: Collection[str]) -> dict[str, Record]:
    """Our charges, or refunds, of these references, whenever they were."""
    rows = _rows(kind).filter(public_id__in=references)
    found = {row["public_id"]: row for row in rows}
    entries = {entry.pop("reference"): entry for entry in _entries(kind, found)}
    return {
        reference: _record(kind, row, entries.get(reference, {}))
        for reference, row in found.items()
    }


def posted(kind: Task, *, since: datetime, until: datetime) -> Iterator[list[Record]]:
    """What the ledger got of charges, or refunds, in that time, in batches; newest first."""
    postings = LedgerTransaction.objects.filter(kind=_OUR_SIDE[kind]).order_by("-pk")
    below: int | None = None
    while True:
        page = postings if below is None else postings.filter(pk__lt=below)
        batch = list(page.values("pk", "created", f"{kind}__public_id")[:BATCH])
        if not batch:
            return
        wanted = [it[f"{kind}__public_id"] for it in batch if since <= it["created"] < until]
        if wanted:
            yield list(records(kind, wanted).values())
        if max(it["created"] for it in batch) < since - DISORDER:
            return
        below = batch[-1]["pk"]


def _rows(kind: Task) -> QuerySet[Any, Any]:
    columns = ["public_id", "status", "gateway_reference", "created"]
    if kind == "refund":
        columns.append("charge__gateway_reference")
    rows: QuerySet[Any, Any] = (Charge if kind == "charge" else Refund).objects.values(*columns)
    return rows


def _entries(kind: Task, references: Collection[str]) -> Iterator[dict[str, Any]]:
    """What the postings say went to or came from the gateway."""
    place = LedgerAccount.Kind.GATEWAY_CLEARING
    of_kind = {"transaction__kind": _OUR_SIDE[kind], "account__kind": place}
    found = LedgerEntry.objects.filter(
        **of_kind, **{f"transaction__{kind}__public_id__in": list(references)}
    )
    columns = (f"transaction__{kind}__public_id", "amount", "account__currency")
    for reference, amount, currency, at in found.values_list(*columns, "transaction__created"):
        yield {
            "reference": reference,
            "amount": abs(amount),
            "currency": currency,
            "posted": at,
        }


def _record(kind: Task, row: dict[str, Any], entry: dict[str, Any]) -> Record:
    return Record(
        kind=kind,
        reference=row["public_id"],
        gateway_id=row["gateway_reference"],
        charge_gateway_id=row.get("charge__gateway_reference", ""),
        is_pending=row["status"] == "pending",
        created=row["created"],
        **entry,
    )
