"""What ``tests.benchmarks.outage`` found: the table, the picture and the CSV."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from PIL import Image

from idempotency.client.simulation.plots import COLOURS, FAINT
from tests.benchmarks.outage_front import SERVED
from tests.benchmarks.outage_merchants import MERCHANTS, Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "without": "without budget and breaker, naive merchants",
    "with": "with budget and breaker",
}
LINES = {"without": COLOURS["immediate"], "with": COLOURS["full"]}
#: Of the arrivals, the part that must get good answers for the product to be well, over SMOOTH
#: seconds.
WELL, SMOOTH = 0.9, 3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The traffic and the outage. Times in seconds from the beginning, rates a second."""

    rate: float = 8.0
    dies: float = 10.0
    returns: float = 30.0
    seconds: float = 65.0
    #: How far from its limit the gateway is without retries.
    utilisation: float = 0.8
    #: At the end: what the product came to.
    last: float = 5.0

    @property
    def capacity(self) -> float:
        return self.rate / self.utilisation


@dataclass(frozen=True)
class Drill:
    """One run. Times by ``time.monotonic()``."""

    name: str
    plan: Plan
    began: float
    died: float
    back: float
    traffic: Traffic
    #: When each request reached the gateway, and what became of it.
    reached: list[tuple[float, str]]
    #: Keys that were charged twice, and charges that only the gateway knows.
    wrong: int
    #: The machine's load average, of one minute, before and after.
    loads: tuple[float, float]

    def periods(self) -> dict[str, tuple[float, float]]:
        """The columns of the table, from when to when."""
        end = self.began + self.plan.seconds
        edges = (self.began, self.died, self.back, end - self.plan.last, end)
        return dict(zip(("before", "dead", "after", "in the end"), pairwise(edges), strict=True))

    def arrived(self) -> list[float]:
        """When requests reached the gateway."""
        return [came for came, _ in self.reached]

    def well_after(self) -> float | None:
        """Seconds from the gateway's return until good answers are near the arrivals again."""
        good = by_second(self.traffic.good, self.back, self.began + self.plan.seconds)
        for second in range(len(good) - SMOOTH + 1):
            if sum(good[second : second + SMOOTH]) >= WELL * self.plan.rate * SMOOTH:
                return float(second)
        return None


def rate(times: Iterable[float], begin: float, end: float) -> float:
    return sum(begin <= moment < end for moment in times) / (end - begin)


def by_second(times: Iterable[float], begin: float, end: float) -> list[int]:
    counts = Counter(int(moment - begin) for moment in times if begin <= moment < end)
    return [counts[second] for second in range(round(end - begin))]


def bounds_help(without: Drill, bounded: Drill) -> bool:
    """Whether no charge was wrong, fewer requests met the dead gateway, and there were more
    good answers in the end."""

    def rates(drill: Drill) -> tuple[float, float]:
        periods = drill.periods()
        load = rate(drill.arrived(), *periods["dead"])
        return load, rate(drill.traffic.good, *periods["in the end"])

    (load, good), (bounded_load, bounded_good) = rates(without), rates(bounded)
    return bounded_load < load and bounded_good > good and not without.wrong and not bounded.wrong


def show(drills: Sequence[Drill]) -> None:
    """Print the table."""
    plan = drills[0].plan
    print(_conditions(drills))
    print(f"{'a second':<34}" + "".join(f"{name:>12}" for name in drills[0].periods()))
    for drill in drills:
        for what, times in _series(drill).items():
            rates = "".join(f"{rate(times, *span):12.1f}" for span in drill.periods().values())
            print(f"{drill.name:<9}{what:<25}{rates}")
    print(f"in the end: the last {plan.last:.0f} s")
    for drill in drills:
        print(_summary(drill))


def _series(drill: Drill) -> dict[str, list[float]]:
    return {
        "reach the gateway": drill.arrived(),
        "of them served": [came for came, fate in drill.reached if fate == SERVED],
        "good answers": drill.traffic.good,
    }


def _conditions(drills: Sequence[Drill]) -> str:
    plan = drills[0].plan
    loads = ", ".join(f"{before:.1f} to {after:.1f}" for before, after in (d.loads for d in drills))
    late = max(drill.traffic.late for drill in drills)
    return (
        f"{plan.rate:g} charges a second by {MERCHANTS} merchants; the gateway can do"
        f" {plan.capacity:g}, and is dead from {plan.dies:g} s to {plan.returns:g} s of"
        f" {plan.seconds:g}\n{os.cpu_count()} processors, load average {loads};"
        f" latest arrival {late * 1000:.0f} ms behind its time"
    )


def _summary(drill: Drill) -> str:
    after = drill.well_after()
    when = "not well again" if after is None else f"well again {after:.0f} s after its return"
    return (
        f"{drill.name:<9}{drill.traffic.sent} charges, {len(drill.traffic.good)} good answers, "
        f"{len(drill.reached)} requests at the gateway; {drill.wrong} wrong charges; {when}"
    )


def write(drills: Sequence[Drill], path: Path) -> None:
    """One line for each second of each run."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["run", "second", "gateway", *map(_column, _series(drills[0]))])
        for drill in drills:
            end = drill.began + drill.plan.seconds
            counted = [by_second(it, drill.began, end) for it in _series(drill).values()]
            for second, counts in enumerate(zip(*counted, strict=True)):
                dead = drill.died <= drill.began + second < drill.back
                lines.writerow([drill.name, second, "dead" if dead else "up", *counts])


def _column(name: str) -> str:
    return name.replace(" ", "_")


def draw(drills: Sequence[Drill], path: Path) -> None:
    """Both runs over time: what reaches the gateway above, good answers below."""
    plan = drills[0].plan
    figure = Figure(figsize=(8, 6), layout="constrained")
    figure.suptitle(
        "A dead gateway, and what the retries of the live product make of it\n"
        f"{plan.rate:g} charges a second, the gateway can do {plan.capacity:g},"
        f" {os.cpu_count()} processors",
        fontsize=11,
    )
    top, bottom = figure.subplots(2, 1, sharex=True)
    for drill in drills:
        _plot(top, drill, drill.arrived())
        _plot(bottom, drill, drill.traffic.good)
    _mark(top, plan, plan.capacity, "capacity", above=True)
    _mark(bottom, plan, plan.rate, "arrivals", above=False)
    top.annotate(
        "gateway dead", (plan.dies, 1), (4, -12), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=9, color="#555555",
    )  # fmt: skip
    top.set_ylabel("requests a second\nthat reach the gateway")
    bottom.set(xlim=(0, plan.seconds), xlabel="seconds", ylabel="good answers a second")
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    _save(figure, path)


def _plot(axes: Axes, drill: Drill, times: list[float]) -> None:
    counts = by_second(times, drill.began, drill.began + drill.plan.seconds)
    middles = [second + 0.5 for second in range(len(counts))]
    axes.plot(middles, counts, color=LINES[drill.name], label=NAMES[drill.name])


def _mark(axes: Axes, plan: Plan, level: float, name: str, *, above: bool) -> None:
    """Show when the gateway is dead, and a level that is named at its end."""
    axes.axvspan(plan.dies, plan.returns, color="#eeeeee", zorder=0)
    axes.axhline(level, color=FAINT, linestyle="--", zorder=1)
    axes.annotate(
        f"{name} {level:g}/s", (plan.seconds, level), (-3, 4 if above else -12), ha="right",
        textcoords="offset points", fontsize=9, color="#555555",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)


def _save(figure: Figure, path: Path) -> None:
    """Write it in 128 colours, all that it needs."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(128).save(path, format="png", optimize=True)
