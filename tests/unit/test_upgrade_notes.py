"""Each migration has its line about locks in the README of the app, in order."""

from __future__ import annotations

import re
from pathlib import Path

APP = Path(__file__).resolve().parents[2] / "idempotency"


def test_every_migration_says_what_it_locks() -> None:
    section = (APP / "README.md").read_text().split("## Upgrading without a pause")[1]
    named = re.findall(r"^\| `(\d{4}_\w+)` \|", section, re.MULTILINE)
    assert named == sorted(path.stem for path in (APP / "migrations").glob("0*.py"))
