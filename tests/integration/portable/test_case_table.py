"""The table in tests/README.md: every case of the contract, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
CASES = 60


def table() -> dict[int, list[tuple[str, str]]]:
    """Case number → file and name of each test in its row."""
    return {
        int(number): [(path, name) for path, name in re.findall(r"`([\w/.]+)::(\w+)`", tests)]
        for number, tests in ROW.findall((TESTS / "README.md").read_text())
    }


def test_every_case_of_the_contract_has_a_row_with_a_test() -> None:
    rows = table()

    assert list(rows) == list(range(1, CASES + 1))
    assert [number for number, tests in rows.items() if not tests] == []


def test_every_test_in_the_table_exists_and_bears_its_number() -> None:
    for number, tests in table().items():
        for path, name in tests:
            assert f"def {name}(" in (TESTS / path).read_text(), (number, path, name)
            numbers = re.match(r"test_case_((?:\d+_)+)", name)
            assert numbers is not None, name
            assert number in [int(part) for part in numbers[1].strip("_").split("_")]
