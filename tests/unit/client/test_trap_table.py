"""The table of traps in tests/README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROW = re.compile(r"^\| [^|]+ \| `([\w./]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_every_trap_of_the_table_has_its_test() -> None:
    table = (HERE.parents[1] / "README.md").read_text().split("## The traps of retrying")[1]
    rows = ROW.findall(table)

    assert len(rows) == len(re.findall(r"^\| ", table, re.MULTILINE)) - 2
    missing = [
        test for path, test in rows if f"def {test}(" not in (HERE / path).resolve().read_text()
    ]
    assert missing == []
