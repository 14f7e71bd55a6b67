from __future__ import annotations

from typing import Any

from idempotency import reconciliation
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Ask the other side about operations whose outcome nobody knows, and settle them."

    def run(self, **options: Any) -> Result:
        return reconciliation.reconcile_operations(**options)
