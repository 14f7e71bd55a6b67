"""``python -m tests.benchmarks.simulation``: the simulator against plain Python, and its tables.

1. Ten thousand clients, six strategies: a straightforward simulation and the simulator, in one run.
   Both are timed in seconds of processor, which other work on the machine changes little.
2. The numbers that are published, and how far the simulator is from them.

Ends with 1 where one of them is too far away, or the simulator is the slower one. Takes some
minutes, nearly all of them for the straightforward simulation. With ``--pictures`` it draws the
pictures of ``pictures/`` anew instead.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from idempotency.client.simulation import contention, recovery, strategies
from idempotency.client.simulation.__main__ import main as simulate
from tests.benchmarks import published

PICTURES = Path(__file__).parent / "pictures"
MANY = 10_000
#: How many runs are averaged.
SEEDS = {100: 20, 1000: 5}
RECOVERY_SEEDS = 10
TOLERANCE, FLUID_TOLERANCE = 0.05, 0.1
#: In milliseconds, the mean and the standard deviation of one leg over the network.
LEG = 10, 2


@dataclass
class Client:
    """One client of the straightforward simulation; of what it has under way, the read's time."""

    waits: Iterator[float]
    read_at: float = 0.0


def straightforward(name: str, clients: int, seed: int) -> int:
    """The calls of one contest, counted with one heap event an attempt and nothing clever."""
    rng = random.Random(seed)
    strategy = contention.strategy(name)

    def leg() -> float:
        return abs(rng.normalvariate(*LEG)) / 1000

    def send(client: Client, now: float) -> None:
        client.read_at = now + leg()
        heapq.heappush(events, (client.read_at + leg() + leg(), id(client), client))

    events: list[tuple[float, int, Client]] = []
    for _ in range(clients):
        send(Client(strategy.waits(rng)), 0.0)
    calls, last_success = 0, -math.inf
    while events:
        now, _, client = heapq.heappop(events)
        calls += 1
        if client.read_at > last_success:
            last_success = now
        else:
            send(client, now + leg() + next(client.waits))
    return calls


class Report:
    """Prints lines, and remembers whether a number was too far from where it should be."""

    failed = False

    def off(self, value: float, known: float, tolerance: float = TOLERANCE) -> str:
        """The deviation, marked when it is beyond the tolerance."""
        deviation = value / known - 1
        too_far = abs(deviation) > tolerance
        self.failed |= too_far
        return f"{deviation:+.1%}{' !' if too_far else ''}"


def race(report: Report) -> None:
    """Both simulations of ``MANY`` clients, with the seconds each takes."""
    print(f"{MANY:,} clients; seconds of processor; calls against those published, and the fluid")
    print(f"{'':14}{'plain calls':>12}{'s':>8}{'calls':>12}{'s':>8}{'published':>12}{'fluid':>9}")
    plain_total = fast_total = 0.0
    for name in strategies.NAMES:
        began = time.process_time()
        plain_calls = straightforward(name, MANY, seed=1)
        between = time.process_time()
        run = contention.run(name, MANY, seed=1)
        plain, fast = between - began, time.process_time() - between
        plain_total, fast_total = plain_total + plain, fast_total + fast
        calls = run.tally.calls
        known = published.CALLS[MANY].get(name)
        print(
            f"{name:14}{plain_calls:12,}{plain:8.1f}{calls:12,}{fast:8.1f}"
            f"{'-' if known is None else report.off(calls, known):>12}"
            f"{report.off(run.fluid_calls, calls, FLUID_TOLERANCE):>9}",
            flush=True,
        )
        report.off(plain_calls, calls)
    print(f"{'together':14}{plain_total:20.1f}{fast_total:20.1f}", end="")
    print(f"   {plain_total / fast_total:.0f} times as fast")
    report.failed |= fast_total >= plain_total


def few_clients(report: Report) -> None:
    for clients, seeds in SEEDS.items():
        print(f"\n{clients:,} clients, mean of {seeds} seeds")
        for name, known in published.CALLS[clients].items():
            runs = [contention.run(name, clients, seed=seed) for seed in range(1, seeds + 1)]
            calls = statistics.fmean(run.tally.calls for run in runs)
            print(f"{name:14}{calls:12,.0f}{known:12,.0f}{report.off(calls, known):>9}")


def after_the_outage(report: Report) -> None:
    scenario = recovery.Scenario()
    print(f"\nGood answers a second after the outage, mean of {RECOVERY_SEEDS} seeds")
    for name, ratio, known in published.GOOD_ANSWERS:
        good = statistics.fmean(
            recovery.run(name, scenario, seed=seed, ratio=ratio).good_rate(
                scenario.outage_until, scenario.until
            )
            for seed in range(1, RECOVERY_SEEDS + 1)
        )
        label = name if ratio is None else f"{name} + {ratio:.0%}"
        print(f"{label:14}{good:12.0f}{known:12.0f}{report.off(good, known):>9}")


def draw() -> int:
    """Draw the pictures with the commands that a reader would type."""
    PICTURES.mkdir(exist_ok=True)
    for arguments in (
        ["contention", "--clients", "10,30,100,300,1000,3000,10000", "--seeds", "1-3", "--png"],
        ["contention", "--clients", "100", "--seeds", "1", "--arrivals"],
        ["recovery", "--rate", "800", "--seeds", "1", "--png"],
        ["tails", "--seeds", "1-3", "--png"],
    ):
        name = "arrivals" if arguments[-1] == "--arrivals" else arguments[0]
        code = simulate([*arguments, str(PICTURES / f"{name}.png")])
        if code:
            return code
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", action="store_true", help="Only draw the pictures anew.")
    if parser.parse_args().pictures:
        return draw()
    report = Report()
    race(report)
    few_clients(report)
    after_the_outage(report)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
