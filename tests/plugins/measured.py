"""Figures that tests measure, printed at the end of a run, with pytest-xdist too.

def test_...(measured): measured("longest claim", f"{longest:.3f} s")
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Measure = Callable[[str, object], None]


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measure:
    """Say what was measured: a name and a figure with its unit."""
    return lambda name, figure: record_property("measured", f"{name}: {figure}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = [
        figure
        for report in terminalreporter.getreports("passed")
        for name, figure in report.user_properties
        if name == "measured"
    ]
    if figures:
        terminalreporter.section("measured")
        for figure in figures:
            terminalreporter.write_line(str(figure))
