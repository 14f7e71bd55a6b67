"""`make test`: the portable suites on every other database and Django, then the whole suite.

A variant that this machine cannot run is skipped and says why.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Three processes on two cores, for much of the time is waiting; a module stays in one, since its
# tests may share a server.
PARALLEL = ["-n", "3", "--dist", "loadfile"]
PORTABLE = [*PARALLEL, "tests/integration/portable"]


@dataclass(frozen=True)
class Variant:
    """One run of pytest."""

    name: str
    arguments: list[str]
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    #: Why it cannot run here; empty where it can.
    skipped: str = ""

    def passes(self) -> bool:
        print(f"\n--- {self.name}", flush=True)
        command = [self.python, "-m", "pytest", *self.arguments]
        return subprocess.run(command, cwd=ROOT, env=os.environ | dict(self.env)).returncode == 0


def variants() -> Iterator[Variant]:
    yield Variant("SQLite", PORTABLE, env={"TEST_DATABASE": "sqlite"})
    yield _oldest_postgresql_and_newest_django()
    yield Variant("the whole suite", [*PARALLEL, "--durations=15"])


def _oldest_postgresql_and_newest_django() -> Variant:
    """Both in one run, as far as they are here: what breaks under either has a name in it.

    Django 6.1 needs Python 3.12: a virtual environment of its own beside .venv.
    """
    bin_dir = Path("/usr/lib/postgresql/15/bin")
    old = (bin_dir / "postgres").exists()
    newer = None if sys.version_info >= (3, 12) else next(_newer_interpreters(), None)
    env = {"TEST_DATABASE": f"postgres:{bin_dir}"} if old else {}
    parts = ["PostgreSQL 15"] if old else []
    # The client half knows no Django: its tests run once, in the whole suite.
    arguments = [*PORTABLE, "tests/unit", "--ignore=tests/unit/client"] if newer else PORTABLE
    python = sys.executable
    if newer is not None:
        parts.append("Django 6.1 on Python 3.12 or later")
        venv = ROOT / ".venv-newest"
        subprocess.run(["sh", "config/install.sh", newer, venv.name], cwd=ROOT, check=True)
        python = str(venv / "bin" / "python")
    missing = "" if parts else f"there is no {bin_dir} and no other Python"
    name = " and ".join(parts) or "PostgreSQL 15 or Django 6.1"
    return Variant(name, arguments, python=python, env=env, skipped=missing)


def _newer_interpreters() -> Iterator[str]:
    """Interpreters that start, newest first; pyenv's as well, which are not on the PATH."""
    pyenv = Path.home() / ".pyenv" / "versions"
    for minor in (14, 13, 12):
        candidates = [f"python3.{minor}", *map(str, pyenv.glob(f"3.{minor}.*/bin/python"))]
        for candidate in candidates:
            try:
                printed = subprocess.run([candidate, "-V"], capture_output=True, text=True).stdout
            except FileNotFoundError:
                continue
            if re.match(rf"Python 3\.{minor}\.\d+$", printed):
                yield candidate


def main() -> int:
    failed = []
    for variant in variants():
        if variant.skipped:
            print(f"\n--- {variant.name}: skipped, {variant.skipped}", flush=True)
        elif not variant.passes():
            failed.append(variant.name)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
