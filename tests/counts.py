"""How often a test repeats itself: what a promise names, and less in `make test`."""

import os

#: `THOROUGH=1 .venv/bin/pytest …` repeats as often as the promises say.
THOROUGH = bool(os.environ.get("THOROUGH"))


def repeats(promised: int, everyday: int) -> int:
    """How often it is now."""
    return promised if THOROUGH else everyday
