"""What a start of the stack does to its database, in one process: migrate, make the days ahead,
seed the demo. Each step may be repeated.

    python -m config.prepare FILE     whom the seed made goes to FILE, as JSON
"""

import os
import sys
from pathlib import Path

import django
from django.core.management import call_command


def main(result: Path) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    call_command("idempotency_create_partitions", verbosity=0)
    with result.open("w") as file:
        call_command("seed_demo", json=True, stdout=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
