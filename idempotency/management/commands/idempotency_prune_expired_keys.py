from __future__ import annotations

from typing import Any

from idempotency import maintenance
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = "Delete the keys that have expired."
    can_rehearse = True

    def run(self, **options: Any) -> Result:
        return maintenance.prune_expired_keys(**options)
