from __future__ import annotations

from typing import Any

from idempotency import maintenance
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Drop the days that are past the retention and that no key needs (PostgreSQL)."
    can_rehearse = True

    def run(self, **options: Any) -> Result:
        return maintenance.drop_expired_partitions(**options)
