"""Results as tables to read and CSV files to compute with."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from idempotency.client.simulation import recovery
from idempotency.client.simulation.contention import Contest
from idempotency.client.simulation.recovery import Aftermath
from idempotency.client.simulation.tails import Tail, expected

__all__ = [
    "contention_rows",
    "contention_table",
    "recovery_rows",
    "recovery_table",
    "tails_rows",
    "tails_table",
    "write_csv",
]

Row: TypeAlias = Sequence[object]

#: The quantiles of latency that are told.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, the first of which names the columns. OSError: it cannot be written."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def table(rows: Sequence[Row]) -> str:
    """Columns as wide as they must be; the first one to the left, numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )


def contention_table(contests: Sequence[Contest]) -> str:
    """Means over the seeds, one line for each strategy and number of clients."""
    rows: list[Row] = [("strategy", "clients", "calls", "seconds", "mean wait ms", "fluid/calls")]
    for (name, clients), runs in _groups(contests):
        rows.append(
            (
                name,
                f"{clients:,}",
                f"{_mean(run.tally.calls for run in runs):,.0f}",
                f"{_mean(run.tally.duration for run in runs):,.1f}",
                f"{1000 * _mean(run.mean_wait for run in runs):,.0f}",
                f"{_mean(run.fluid_calls / run.tally.calls for run in runs):.2f}",
            )
        )
    return table(rows)


def _groups(contests: Sequence[Contest]) -> Iterator[tuple[tuple[str, int], list[Contest]]]:
    for key, runs in itertools.groupby(contests, lambda run: (run.strategy, run.clients)):
        yield key, list(runs)


def contention_rows(contests: Iterable[Contest]) -> Iterator[Row]:
    """One row a run."""
    yield "strategy", "clients", "seed", "engine", "calls", "seconds", "mean_wait", "fluid_calls"
    for run in contests:
        tally = run.tally
        shown = (f"{tally.duration:.6f}", f"{run.mean_wait:.6f}", f"{run.fluid_calls:.1f}")
        yield run.strategy, run.clients, run.seed, run.engine, tally.calls, *shown


def recovery_table(runs: Sequence[Aftermath]) -> str:
    """Means over the seeds: good answers before and after the outage, load after it."""
    rows: list[Row] = [("strategy", "good/s before", "good/s after", "load/s after", "load/calls")]
    for label, alike in itertools.groupby(runs, lambda run: run.label):
        group = list(alike)
        scenario = group[0].scenario
        after = (scenario.outage_until, scenario.until)
        load = _mean(run.load(*after) for run in group)
        before = "-"
        if scenario.outage_from >= recovery.BUCKET:
            before = f"{_mean(run.good_rate(0, scenario.outage_from) for run in group):,.0f}"
        good = f"{_mean(run.good_rate(*after) for run in group):,.0f}"
        rows.append((label, before, good, f"{load:,.0f}", f"{load / scenario.rate:.2f}"))
    return table(rows)


def recovery_rows(runs: Iterable[Aftermath]) -> Iterator[Row]:
    """One row a run and bucket of 100 ms."""
    yield "strategy", "budget", "seed", "second", "attempts", "good"
    for run in runs:
        budget = "" if run.ratio is None else run.ratio
        for number, counts in enumerate(zip(run.attempts, run.good, strict=True)):
            yield run.strategy, budget, run.seed, f"{number * recovery.BUCKET:.1f}", *counts


def tails_table(runs: Sequence[Tail], *, hedge_at: float) -> str:
    """Means over the seeds, and beside each quantile what the formula says."""
    names = [f"p{100 * q:g}" for q in QUANTILES]
    rows: list[Row] = [("", "extra load", *itertools.chain(*((name, "formula") for name in names)))]
    for hedged, alike in itertools.groupby(runs, lambda run: run.hedged):
        group = list(alike)
        cells: list[object] = ["hedged" if hedged else "alone"]
        cells.append(f"{_mean(run.extra_load for run in group):.1%}")
        for q in QUANTILES:
            cells.append(f"{_mean(run.quantile(q) for run in group):.3f}")
            cells.append(f"{expected(q, hedge_at=hedge_at if hedged else None):.3f}")
        rows.append(cells)
    return table(rows)


def tails_rows(runs: Iterable[Tail]) -> Iterator[Row]:
    """One row a run and per mille of the requests."""
    yield "hedged", "seed", "extra_load", "quantile", "latency"
    for run in runs:
        for mille in range(1, 1000):
            latency = run.quantile(mille / 1000)
            yield run.hedged, run.seed, f"{run.extra_load:.5f}", mille / 1000, f"{latency:.6f}"


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
