"""Counts what reconciliation comes to, for Prometheus when prometheus-client is installed."""

from __future__ import annotations

try:
    from prometheus_client import Counter, Gauge
except ImportError:  # the ``metrics`` extra is not installed: the log and the admin remain
    Counter = Gauge = None  # type: ignore[assignment,misc]

#: Outcomes: done, refused, not_sent (withdrawn), resumed (left to the resuming job), overdue (no
#: outcome after RECONCILE_ALERT_AFTER; once for an operation).
SETTLEMENTS = (
    None
    if Counter is None
    else Counter(
        "idempotency_settlements",
        "Operations that reconciliation asked about, by how that ended.",
        ["operation", "outcome"],
    )
)
#: Of the last run, in whichever process: scrape the worker that runs the job.
OVERDUE = (
    None
    if Gauge is None
    else Gauge(
        "idempotency_operations_overdue",
        "Operations without an outcome for longer than RECONCILE_ALERT_AFTER.",
        multiprocess_mode="mostrecent",
    )
)


def count(operation: str, outcome: str) -> None:
    """One more operation whose reconciliation ended like this."""
    if SETTLEMENTS is not None:
        SETTLEMENTS.labels(operation=operation, outcome=outcome).inc()


def show_overdue(number: int) -> None:
    """How many are overdue now."""
    if OVERDUE is not None:
        OVERDUE.set(number)
