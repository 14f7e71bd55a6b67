"""The table in tests/README.md: every case of the contract, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
DEFINITION = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
CASES = 60


def table() -> dict[int, list[str]]:
    """Case number → names of the tests in its row."""
    text = (TESTS / "README.md").read_text()
    return {int(number): re.findall(r"`(\w+)`", tests) for number, tests in ROW.findall(text)}


def cases_of(test: str) -> list[int]:
    """The numbers in a test's name."""
    numbers = re.match(r"test_case_((?:\d+_)+)", test)
    return [] if numbers is None else [int(part) for part in numbers[1].strip("_").split("_")]


def test_every_case_of_the_contract_has_a_row_with_a_test() -> None:
    rows = table()

    assert list(rows) == list(range(1, CASES + 1))
    assert [number for number, tests in rows.items() if not tests] == []


def test_every_test_in_the_table_exists_and_bears_its_number() -> None:
    defined = {
        name for path in TESTS.rglob("test_*.py") for name in DEFINITION.findall(path.read_text())
    }

    for number, tests in table().items():
        for test in tests:
            assert test in defined
            assert number in cases_of(test)
