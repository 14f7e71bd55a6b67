from __future__ import annotations

from typing import Any

from idempotency import maintenance
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Drive abandoned operations to their end."

    def run(self, **options: Any) -> maintenance.Result:
        return maintenance.resume_operations(**options)
