"""Pictures of the results. Needs matplotlib, of the ``simulation`` extra.

One strategy has one colour in every picture, of a palette that the colour-blind can tell apart, and
lines are named where they end. The title says which seeds were used.
"""

from __future__ import annotations

import io
import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from idempotency.client.simulation import contention, recovery
from idempotency.client.simulation.contention import Contest
from idempotency.client.simulation.recovery import Aftermath
from idempotency.client.simulation.tails import Tail

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["arrivals", "calls_by_clients", "latency_tail", "recovery_over_time"]

COLOURS = {
    "immediate": "#d55e00",
    "fixed": "#cc79a7",
    "exponential": "#e69f00",
    "equal": "#56b4e9",
    "full": "#0072b2",
    "decorrelated": "#009e73",
    recovery.NO_RETRIES: "#555555",
}
FAINT = "#bbbbbb"


def calls_by_clients(contests: Sequence[Contest], path: Path, *, note: str, seeds: str) -> None:
    """Mean calls until all have succeeded, by the number of clients, both logarithmic."""
    figure, axes = _figure(8, 5.2, "Calls until every client has succeeded once", note, seeds)
    ends = []
    for name, runs in itertools.groupby(contests, lambda run: run.strategy):
        points = [
            (clients, statistics.fmean(run.tally.calls for run in alike))
            for clients, alike in itertools.groupby(runs, lambda run: run.clients)
        ]
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", markersize=4, color=_colour(name))
        ends.append((y[-1], name))
    counts = sorted({run.clients for run in contests})
    axes.plot(counts, counts, color=FAINT, linestyle="--")
    ends.append((counts[-1], "one a client"))
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="calls")
    _name_ends(axes, counts[-1], ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_short))
    axes.grid(alpha=0.3)
    _save(figure, path)


def arrivals(contests: Sequence[Contest], path: Path, *, note: str, seeds: str) -> None:
    """Calls in each 100 ms, one panel a strategy, of the runs with the first seed."""
    clients, seed = contests[-1].clients, contests[0].seed
    chosen = [run for run in contests if (run.clients, run.seed) == (clients, seed)]
    title = f"When the calls of {clients:,} clients arrive"
    rows = (len(chosen) + 1) // 2
    figure = _titled(9, 1.2 + 1.75 * rows, title, note, seeds)
    grid = figure.subplots(rows, min(2, len(chosen)), sharex=True, sharey=True, squeeze=False)
    longest = sorted(run.tally.duration for run in chosen)
    # One strategy that takes ten times as long would press the others into the corner.
    limit = min(longest[-1], 1.5 * longest[-2:][0])
    for axes, run in zip(grid.flat, chosen, strict=False):
        series = run.series()[: int(limit / contention.BUCKET) + 1]
        times = [number * contention.BUCKET for number in range(len(series))]
        axes.bar(times, series, width=contention.BUCKET, align="edge", color=_colour(run.strategy))
        more = "" if run.tally.duration <= limit else f", ends at {run.tally.duration:,.0f} s"
        axes.set_title(f"{run.strategy}: {run.tally.calls:,} calls{more}", fontsize=10)
        axes.set(xlim=(0, limit))
        axes.grid(axis="y", alpha=0.3)
    for axes in list(grid.flat)[len(chosen) :]:
        axes.set_visible(False)
    figure.supxlabel("seconds", fontsize=10)
    figure.supylabel("calls per 100 ms", fontsize=10)
    _save(figure, path)


def recovery_over_time(runs: Sequence[Aftermath], path: Path, *, note: str, seeds: str) -> None:
    """Load and good answers a second over time, without a budget on the left, with on the right."""
    scenario = runs[0].scenario
    title = "An outage, and what the retries make of it"
    figure = _titled(10, 6, title, note, seeds)
    ratios = sorted({run.ratio for run in runs}, key=lambda ratio: (ratio is not None, ratio))
    grid = figure.subplots(2, len(ratios), sharex=True, sharey="row", squeeze=False)
    for (top, bottom), ratio in zip(grid.T, ratios, strict=True):
        shown = [run for run in runs if run.ratio == ratio or run.strategy == recovery.NO_RETRIES]
        _draw_runs(top, bottom, shown)
        top.set_title("no budget" if ratio is None else f"with a budget of {ratio:.0%}")
        for axes in (top, bottom):
            axes.axvspan(scenario.outage_from, scenario.outage_until, color="#eeeeee", zorder=0)
            axes.grid(alpha=0.3)
        bottom.set(xlim=(0, scenario.until), ylim=(0, 1.15 * scenario.rate), xlabel="seconds")
        top.set_ylim(bottom=0)
        top.axhline(scenario.capacity, color=FAINT, linestyle="--", zorder=1)
        bottom.axhline(scenario.rate, color=FAINT, linestyle="--", zorder=1)
    _name_level(grid[0][-1], scenario, scenario.capacity, "capacity")
    _name_level(grid[1][-1], scenario, scenario.rate, "calls")
    grid[0][0].annotate(
        "outage", (scenario.outage_from, 0), (4, 4), textcoords="offset points", color="#555555"
    )
    grid[0][0].set_ylabel("attempts a second")
    grid[1][0].set_ylabel("good answers a second")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False)
    _save(figure, path)


def _draw_runs(top: Axes, bottom: Axes, runs: Iterable[Aftermath]) -> None:
    """One line a strategy in each of the two, the mean of its runs."""
    for name, alike in itertools.groupby(runs, lambda run: run.strategy):
        group = list(alike)
        style = ":" if name == recovery.NO_RETRIES else "-"
        times, load = _smooth([run.attempts for run in group])
        _, good = _smooth([run.good for run in group])
        top.plot(times, load, style, color=_colour(name), label=name)
        bottom.plot(times, good, style, color=_colour(name))


def _smooth(series: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """The mean rate of several runs, over whole seconds of which there are 50 to 100."""
    length = len(series[0])
    width = max(1, round(length * recovery.BUCKET / 75)) * round(1 / recovery.BUCKET)
    starts = range(0, length - width + 1, width)
    sums = (statistics.fmean(sum(one[start : start + width]) for one in series) for start in starts)
    times = [(start + width / 2) * recovery.BUCKET for start in starts]
    return times, [total / (width * recovery.BUCKET) for total in sums]


def _name_level(axes: Axes, scenario: recovery.Scenario, height: float, name: str) -> None:
    axes.annotate(
        f"{name} {height:,.0f}/s", (scenario.until, height), (-3, 10), ha="right",
        textcoords="offset points", fontsize=9, color="#555555",
    )  # fmt: skip


def latency_tail(runs: Sequence[Tail], path: Path, *, note: str, seeds: str) -> None:
    """The share of requests that takes longer than a time, logarithmic."""
    figure, axes = _figure(8, 4.6, "The slow answers, with and without a second copy", note, seeds)
    styles = {
        False: ("alone", COLOURS["immediate"], (7, 5), "left"),
        True: ("hedged", COLOURS["full"], (-7, -10), "right"),
    }
    for hedged, alike in itertools.groupby(runs, lambda run: run.hedged):
        group = list(alike)
        shares = [10 ** (-step / 25) for step in range(76)]
        means = [statistics.fmean(run.quantile(1 - share) for run in group) for share in shares]
        name, colour, place, side = styles[hedged]
        extra = statistics.fmean(run.extra_load for run in group)
        label = f"{name}, {extra:.1%} more requests" if hedged else name
        axes.plot(means, shares, color=colour, label=label)
        for share, rank in ((0.01, "p99"), (0.001, "p99.9")):
            value = statistics.fmean(run.quantile(1 - share) for run in group)
            axes.plot([value], [share], "o", color=colour)
            axes.annotate(
                f"{rank} {value:.2f}", (value, share), place, textcoords="offset points",
                color=colour, fontsize=9, ha=side,
            )  # fmt: skip
    axes.set(yscale="log", ylim=(7e-4, 1), xlim=(0, 8), xlabel="latency, in means")
    axes.set_ylabel("share of requests that takes longer")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    _save(figure, path)


def _titled(width: float, height: float, title: str, note: str, seeds: str) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(f"{title}\n{note}, {seeds}", fontsize=11)
    return figure


def _figure(width: float, height: float, title: str, note: str, seeds: str) -> tuple[Figure, Axes]:
    figure = _titled(width, height, title, note, seeds)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _name_ends(axes: Axes, x: float, ends: Iterable[tuple[float, str]]) -> None:
    """Write each line's name at its end, one above the other where the ends are close."""
    lowest, (bottom, top) = 0.0, axes.get_ylim()
    for y, name in sorted(ends):
        place = max(y, lowest)
        axes.annotate(
            name, (x, place), (8, 0), textcoords="offset points", va="center",
            color=_colour(name), annotation_clip=False,
        )  # fmt: skip
        lowest = place * (top / bottom) ** (1 / 26)


def _colour(name: str) -> str:
    return COLOURS.get(name, "#777777")


def _short(value: float, _: object) -> str:
    for size, suffix in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _save(figure: Figure, path: Path) -> None:
    """Write it in 128 colours, all that these pictures need: a third of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(128).save(path, format="png", optimize=True)
