"""`make test`: the portable suites on every other database and Django, then the whole suite.

The portable suites run beside each other, since each waits for a server of its own at its start and
end. A variant that this machine cannot run is skipped and says why.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# A module stays in one process, since its tests may share a server. In the order of the folders,
# acceptance first: xdist would begin with the modules of the most tests, and end with the slowest
# test alone on the machine.
PARALLEL = ["--dist", "loadfile", "--no-loadscope-reorder"]
# Three processes on two cores, for much of the time is waiting.
WHOLE = ["-n", "3", *PARALLEL, "--durations=15"]
PORTABLE = ["-n", "2", *PARALLEL, "tests/integration/portable"]
PAGES = ("admin", "doubts", "observability", "overview", "privacy")


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
        """Run it, and print what it says when it is done."""
        if self.skipped:
            print(f"\n--- {self.name}: skipped, {self.skipped}", flush=True)
            return True
        run = self._run(capture_output=True, text=True, errors="replace")
        print(f"\n--- {self.name}\n{run.stdout}{run.stderr}", flush=True)
        return run.returncode == 0

    def passes_in_sight(self) -> bool:
        """Run it, and let it print as it goes."""
        print(f"\n--- {self.name}", flush=True)
        return self._run().returncode == 0

    def _run(self, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-m", "pytest", *self.arguments]
        return subprocess.run(command, cwd=ROOT, env=os.environ | dict(self.env), **options)


def portable() -> Iterator[Variant]:
    """The oldest databases under the newest Django, as far as they are here: what breaks under
    either has a name in it. On SQLite the ORM, on PostgreSQL 15 the functions; the whole suite has
    both."""
    python, django = _newest_django()
    yield Variant(f"SQLite{django}", PORTABLE, python=python, env={"TEST_DATABASE": "sqlite"})
    bin_dir = Path("/usr/lib/postgresql/15/bin")
    # The client half knows no Django: its tests run once, in the whole suite. Pages and reports
    # know no version of PostgreSQL: SQLite's run has them under the newest Django.
    unit = ["tests/unit", "--ignore=tests/unit/client"] if django else []
    pages = [f"--ignore=tests/integration/portable/{name}" for name in PAGES]
    yield Variant(
        f"PostgreSQL 15{django}",
        [*PORTABLE, *pages, *unit],
        python=python,
        env={"TEST_DATABASE": f"postgres:{bin_dir}", "TEST_STORES": "functions"},
        skipped="" if (bin_dir / "postgres").exists() else f"there is no {bin_dir}",
    )


def _newest_django() -> tuple[str, str]:
    """An interpreter with Django 6.1, which needs Python 3.12, and its name for people; this one
    and no name where the whole suite runs on it, or where there is none."""
    newer = None if sys.version_info >= (3, 12) else next(_newer_interpreters(), None)
    if newer is None:
        return sys.executable, ""
    venv = ROOT / ".venv-newest"
    subprocess.run(["sh", "config/install.sh", newer, venv.name], cwd=ROOT, check=True)
    return str(venv / "bin" / "python"), " and Django 6.1 on Python 3.12 or later"


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


def main(arguments: list[str]) -> int:
    """Run every variant; with ``--install`` only fetch what they need besides ``.venv``."""
    if arguments == ["--install"]:
        _newest_django()
        return 0
    chosen, whole = list(portable()), Variant("the whole suite", WHOLE)
    with ThreadPoolExecutor(len(chosen)) as pool:
        passed = list(pool.map(Variant.passes, chosen))
    passed.append(whole.passes_in_sight())
    pairs = zip([*chosen, whole], passed, strict=True)
    failed = [variant.name for variant, good in pairs if not good]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
