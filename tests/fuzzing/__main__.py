"""Fuzz what outsiders send, for a while.

    python -m tests.fuzzing [--seconds 60]

Each property of ``tests/unit/test_fuzz_*.py`` runs for so long in a process of its own. Where
atheris is installed (``pip install atheris``; wheels for Linux), it drives the property by the
branches that ``idempotency`` takes; elsewhere hypothesis draws examples at random. Exit code 1
when one is broken; the example is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from types import ModuleType
from typing import Any

ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "DATABASE_URL": "sqlite://:memory:",
    "SECRET_KEY": "of the fuzzing",
    "GATEWAY_URL": "http://127.0.0.1:9000",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "ALLOWED_HOSTS": "localhost,testserver",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("--seconds", type=int, default=60, help="for each property")
    parser.add_argument("--property", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.property:
        return _fuzz(options.property, options.seconds)
    print("by atheris" if find_spec("atheris") else "without atheris, so at random", flush=True)
    os.environ |= ENVIRONMENT
    broken = [name for name in _names() if not _holds(name, options.seconds)]
    print("broken:" if broken else "all hold", *broken)
    return 1 if broken else 0


def _names() -> list[str]:
    return [
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in _modules()
        for name in vars(module)
        if name.startswith("test_")
    ]


def _modules() -> list[ModuleType]:
    import django

    django.setup()
    from tests.unit import test_fuzz_fingerprints, test_fuzz_header, test_fuzz_problems

    return [test_fuzz_header, test_fuzz_fingerprints, test_fuzz_problems]


def _holds(name: str, seconds: int) -> bool:
    command = [sys.executable, "-m", "tests.fuzzing", "--property", name]
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [*command, "--seconds", str(seconds)],
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds * 2 + 120,
        )
        output.seek(0)
        lines = output.read().splitlines()
    counted = next((line for line in reversed(lines) if line.startswith(("Done ", "ran "))), "")
    print(f"{name}: {counted if done.returncode == 0 else 'BROKEN'}", flush=True)
    if done.returncode:
        print("\n".join(lines[-60:]), flush=True)
    return done.returncode == 0


def _fuzz(name: str, seconds: int) -> int:
    """Run one property, and return the exit code; atheris ends the process itself."""
    if find_spec("atheris") is None:
        return _at_random(_property(name), seconds)
    import atheris

    with atheris.instrument_imports(include=["idempotency", "http_sf"]):
        tested = _property(name)
    arguments = [sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", "-verbosity=1"]
    atheris.Setup(arguments, tested.hypothesis.fuzz_one_input)
    atheris.Fuzz()
    return 0


def _property(name: str) -> Any:
    module, _, function = name.partition(".")
    (found,) = (one for one in _modules() if one.__name__.endswith(module))
    return getattr(found, function)


def _at_random(tested: Any, seconds: int) -> int:
    run, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        tested.hypothesis.fuzz_one_input(os.urandom(1024))
        run += 1
    print(f"ran {run:,} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
