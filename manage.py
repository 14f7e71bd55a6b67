#!/usr/bin/env python3
"""Django's command line for the reference project.

Where no DATABASE_URL is set and `make run` is running, its database and settings are used.
"""

import json
import os
import sys
from pathlib import Path

DATA = Path(os.environ.get("STACK_DATA") or Path(__file__).resolve().parent / ".data")
STACK = DATA / "stack.json"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    if "DATABASE_URL" not in os.environ and STACK.exists():
        for name, value in json.loads(STACK.read_text())["environment"].items():
            os.environ.setdefault(name, value)
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
