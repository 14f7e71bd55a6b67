"""The product is killed at a sample of its points; `python -m tests.kill_points` kills each."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from config.stack import ROOT
from tests.acceptance.product import Seeded, drop
from tests.counts import repeats

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

PATHS = 10


def test_what_is_killed_at_a_statement_or_a_call_is_recovered_from(seeded: Seeded) -> None:
    database = seeded.copy()
    every = repeats(1, 100)
    command = [sys.executable, "-m", "tests.kill_points", "--every", str(every)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"DATABASE_URL": database},
            capture_output=True,
            text=True,
            timeout=1800 if every == 1 else 300,
        )
    finally:
        drop(database)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"(\d+) points, (\d+) killed, (\d+) recovered", done.stdout)
    *paths, total = [tuple(map(int, numbers)) for numbers in counts]
    assert len(paths) == PATHS
    # Fewer, and a door that statements or calls go through has been lost.
    assert total[0] > 400
    assert total[1] == total[2] >= PATHS
