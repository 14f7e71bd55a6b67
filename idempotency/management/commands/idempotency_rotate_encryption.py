from __future__ import annotations

from typing import Any

from idempotency import rotation
from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand


class Command(JobCommand):
    help = (
        "Encrypt under the first of ENCRYPTION_KEYS what is stored under another one, or in clear. "
        "With --dry-run: say what is stored under which."
    )
    can_rehearse = True

    def run(self, **options: Any) -> Result:
        return rotation.rotate_encryption(**options)
