from __future__ import annotations

from typing import Any

from idempotency import maintenance
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Fail the keys whose owner is gone."

    def run(self, **options: Any) -> Result:
        return maintenance.reclaim_expired_leases(**options)
