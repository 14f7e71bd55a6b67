from __future__ import annotations

from typing import Any

from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand
from idempotency.outbox import jobs


class Command(JobCommand):
    help = "Delete messages that were delivered or discarded long ago."
    can_rehearse = True

    def run(self, **options: Any) -> Result:
        return jobs.prune_outbox(**options)
