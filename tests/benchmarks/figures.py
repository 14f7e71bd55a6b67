"""What a benchmark found: figures beside their bounds, printed, written and judged."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Where results go unless ``--results`` says otherwise. Not committed.
RESULTS = Path(".data/benchmarks")


@dataclass(frozen=True)
class Figure:
    """One number. ``most`` and ``least`` are bounds; without them it is only told."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def kept(self) -> bool:
        """Whether it is within its bounds. What is not a number is within none."""
        above = self.least is None or self.value >= self.least
        below = self.most is None or self.value <= self.most
        return above and below

    def __str__(self) -> str:
        text = f"{self.name:<52}{self.value:12,.3f} {self.unit:<6}"
        if self.most is not None:
            text += f"at most {self.most:g}"
        if self.least is not None:
            text += f"at least {self.least:g}"
        return text + ("" if self.kept else "   MISSED")


@dataclass
class Report:
    """The figures of one benchmark, and the conditions under which they were taken."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    #: What was measured one by one, for whoever wants to look closer.
    details: dict[str, Any] = field(default_factory=dict)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, name: str, value: float, unit: str = "", **bounds: float) -> None:
        """Print a figure and keep it."""
        self.figures.append(Figure(name, value, unit, **bounds))
        print(self.figures[-1], flush=True)

    def end(self, folder: Path) -> int:
        """Write everything to NAME.json, and return the exit code: 1 where a bound is missed."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "benchmark": self.name,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "processors": os.cpu_count(),
            "load": [self.load, os.getloadavg()[0]],
            "figures": [asdict(figure) | {"kept": figure.kept} for figure in self.figures],
            "details": self.details,
        }
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(document, indent=1))
        before, after = document["load"]
        print(f"{os.cpu_count()} processors, load average {before:.1f} to {after:.1f}; {path}")
        return 0 if all(figure.kept for figure in self.figures) else 1


def parser(name: str) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    made = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{name}")
    made.add_argument("--results", type=Path, default=RESULTS, help="the folder for NAME.json")
    return made


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
