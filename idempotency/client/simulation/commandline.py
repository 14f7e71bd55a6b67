"""Running what the command line asks for, for ``python -m`` and for ``manage.py`` alike."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

from idempotency.client.backoff import Backoff
from idempotency.client.budget import BudgetPolicy
from idempotency.client.hedging import HedgePolicy
from idempotency.client.simulation import contention, recovery, reports, tails
from idempotency.client.simulation.contention import Contest
from idempotency.client.simulation.options import seeds_told
from idempotency.client.simulation.progress import bar
from idempotency.client.simulation.recovery import Aftermath, Scenario
from idempotency.client.simulation.tails import Tail

__all__ = ["Failed", "run"]

T = TypeVar("T")

#: Exit codes; the help text explains them.
FAILED, WRONG_OPTION = 1, 2


class Failed(Exception):
    """It could not be done; the message says why, for the user."""

    def __init__(self, message: str, *, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def run(options: argparse.Namespace, write: Callable[[str], object]) -> None:
    """Simulate what was asked for; write the table and the files. Failed: see there."""
    _check_files(options)
    models = {"contention": _contention, "recovery": _recovery, "tails": _tails}
    try:
        models[options.model](options, write)
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from error


def _check_files(options: argparse.Namespace) -> None:
    """Find out before the simulation what would fail after it."""
    pictures = [options.png, getattr(options, "arrivals", None)]
    if any(pictures):
        _require("matplotlib", "Pictures need")
    if getattr(options, "engine", "") == "rounds":
        _require("numpy", "This engine needs")
    for path in (options.csv, *pictures):
        if path is not None and not path.parent.is_dir():
            raise Failed(f"{path.parent} is not a directory.")


def _require(package: str, who: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise Failed(f'{who} {package}: pip install "django-idempotency[simulation]"')


def _made(make: Callable[..., T], *arguments: object, **options: object) -> T:
    """Make something of options whose limits it knows itself."""
    try:
        return make(*arguments, **options)
    except ValueError as error:
        raise Failed(str(error), code=WRONG_OPTION) from error


def _waits(options: argparse.Namespace, make: Callable[..., Backoff]) -> dict[str, Backoff]:
    return {
        name: _made(make, name, base=options.base, cap=options.cap, interval=options.interval)
        for name in options.strategies
    }


def _contention(options: argparse.Namespace, write: Callable[[str], object]) -> None:
    contests = _contests(options)
    write(reports.contention_table(contests))
    if options.csv:
        reports.write_csv(options.csv, reports.contention_rows(contests))
    note = f"base {1000 * options.base:g} ms, cap {options.cap:g} s, {contests[0].engine} engine"
    if options.png:
        from idempotency.client.simulation import plots

        seeds = seeds_told(options.seeds)
        plots.calls_by_clients(contests, options.png, note=note, seeds=seeds)
    if options.arrivals:
        from idempotency.client.simulation import plots

        seeds = seeds_told(options.seeds[:1])
        plots.arrivals(contests, options.arrivals, note=note, seeds=seeds)


def _contests(options: argparse.Namespace) -> list[Contest]:
    waits, record = _waits(options, contention.strategy), options.arrivals is not None
    runs = [
        (name, clients, seed)
        for name in options.strategies
        for clients in options.clients
        for seed in options.seeds
    ]
    total = sum(clients for _, clients, _ in runs)
    with bar("contention", total, quiet=options.quiet) as tell:
        common = {"engine": options.engine, "record": record, "tell": tell}
        return [
            contention.run(name, clients, seed=seed, backoff=waits[name], **common)
            for name, clients, seed in runs
        ]


def _recovery(options: argparse.Namespace, write: Callable[[str], object]) -> None:
    scenario = _made(Scenario, **{name: getattr(options, name) for name in SCENARIO})
    runs = _aftermaths(options, scenario)
    write(reports.recovery_table(runs))
    write(_steady_line(scenario, options.budget))
    if options.csv:
        reports.write_csv(options.csv, reports.recovery_rows(runs))
    if options.png:
        from idempotency.client.simulation import plots

        note = f"{scenario.rate:g} calls/s, at most {scenario.attempts} attempts a call"
        seeds = seeds_told(options.seeds)
        plots.recovery_over_time(runs, options.png, note=note, seeds=seeds)


#: What is an option of the scenario. The slice is not: the numbers of the model depend on it.
SCENARIO = [field.name for field in fields(Scenario) if field.name != "slice"]


def _aftermaths(options: argparse.Namespace, scenario: Scenario) -> list[Aftermath]:
    waits = _waits(options, recovery.strategy)
    ratio = _made(BudgetPolicy, ratio=options.budget).ratio
    kinds: list[tuple[str, float | None]] = [(recovery.NO_RETRIES, None)]
    kinds += [(name, budget) for name in options.strategies for budget in (None, ratio)]
    runs = [(*kind, seed) for kind in kinds for seed in options.seeds]
    with bar("recovery", len(runs) * int(scenario.until), quiet=options.quiet) as tell:
        return [
            recovery.run(
                name, scenario, seed=seed, backoff=waits.get(name), ratio=budget, tell=tell
            )
            for name, budget, seed in runs
        ]


def _steady_line(scenario: Scenario, ratio: float) -> str:
    alone = recovery.steady(replace(scenario, attempts=1), calm=True)
    calm, after = (recovery.steady(scenario, calm=calm) for calm in (True, False))
    budget = recovery.steady(scenario, calm=False, ratio=ratio)
    return (
        "Good answers by the formula, for independent attempts: "
        f"{alone:,.0f}/s without retries; with retries {calm:,.0f}/s from a calm start and "
        f"{after:,.0f}/s after an outage; with the budget {budget:,.0f}/s."
    )


def _tails(options: argparse.Namespace, write: Callable[[str], object]) -> None:
    runs = _hedged_and_alone(options)
    write(reports.tails_table(runs, hedge_at=options.hedge_at))
    if options.csv:
        reports.write_csv(options.csv, reports.tails_rows(runs))
    if options.png:
        from idempotency.client.simulation import plots

        note = f"Exp(1), second copy after p{100 * options.hedge_at:g}"
        plots.latency_tail(runs, options.png, note=note, seeds=seeds_told(options.seeds))


def _hedged_and_alone(options: argparse.Namespace) -> list[Tail]:
    policy = HedgePolicy(quantile=options.hedge_at)
    kinds = [(hedged, seed) for hedged in (False, True) for seed in options.seeds]
    with bar("tails", options.requests * len(kinds), quiet=options.quiet) as tell:
        return [
            tails.run(options.requests, hedged=hedged, seed=seed, policy=policy, tell=tell)
            for hedged, seed in kinds
        ]
