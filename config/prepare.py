"""What a start of the stack does to its database, in one process: migrate, make the days ahead,
seed the demo. Prints what the seed says. Each step may be repeated."""

import os

import django
from django.core.management import call_command


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    call_command("idempotency_create_partitions", verbosity=0)
    call_command("seed_demo")


if __name__ == "__main__":
    main()
