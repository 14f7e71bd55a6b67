from __future__ import annotations

from typing import Any

from idempotency import maintenance
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Drive abandoned operations to their end."

    def run(self, **options: Any) -> Result:
        return maintenance.resume_operations(**options)
