"""Run the product under merchants and a nemesis, and check everybody's books.

    python -m tests.chaos --seconds 1800 --seed 1
    python -m tests.chaos --seconds 120 --seed 1 --without fence

Ends with a table, and with 1 where something was wrong: its seed and the story of the first key are
printed then, and the history is kept. With --without a guard is taken from a copy of the product
first, and it ends with 1 where that was *not* noticed. 2: the run itself failed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from config import tether
from tests.chaos import nemesis, report
from tests.chaos.checker import check
from tests.chaos.facts import Facts, traffic_of
from tests.chaos.history import History, read
from tests.chaos.intents import EVERYDAY, Mix, Stream
from tests.chaos.loading import load, open_keys
from tests.chaos.merchants import Merchants
from tests.chaos.nemesis import Bias, Nemesis
from tests.chaos.side import Side
from tests.chaos.stage import LEASE, Stage
from tests.chaos.without import GUARDS, run_in_copy

#: Keys a second, unless --keys says how many there are to be.
RATE = 28.0
#: Seconds after the last fault within which everything has to be settled.
QUIET = 90.0
#: Seconds between two lines of progress.
PROGRESS = 10.0
#: What shows that a guard is gone: more of the faults that it is there for.
BIASED: dict[str, tuple[Bias, Mix]] = {
    "": (nemesis.EVERYDAY, EVERYDAY),
    "fence": (nemesis.PAUSES, Mix({"transfer": 90, "charge": 10})),
    "lease": (nemesis.PAUSES, EVERYDAY),
    "downstream-key": (nemesis.LOST_ANSWERS, Mix({"transfer": 10, "charge": 90})),
}


class StopRequested(BaseException):
    """A signal asked for the end."""


def main() -> int:
    options = _options()
    _stop_on_signals()
    # What the merchants' breakers do is no news here.
    logging.getLogger("idempotency").setLevel(logging.ERROR)
    try:
        return _run_here(options) if options.here else _run_in_copy(options)
    except StopRequested:
        print("Stopped", flush=True)
        return 130
    except Exception:
        # Not 1: that says that something was found.
        traceback.print_exc()
        return 2


def _run_in_copy(options: argparse.Namespace) -> int:
    words = ["--seconds", f"{options.seconds}", "--seed", f"{options.seed}"]
    words += ["--keys", f"{options.keys}"] if options.keys else []
    words += ["--without", options.without] if options.without else []
    code = run_in_copy(options.without, words)
    if options.without and code in (0, 1):
        print(f"without {options.without}: {'noticed' if code else 'NOT NOTICED'}", flush=True)
        return 1 - code
    return code


def _run_here(options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
    keys = options.keys or int(RATE * options.seconds)
    try:
        outcome = run(folder, options.seconds, options.seed, keys, options.without or "")
    except StopRequested:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    print(report.table(outcome), flush=True)
    if not outcome.violations:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print("\n".join(report.story(outcome, folder / "history.jsonl")))
    print(f"The history and the logs are in {folder}.", flush=True)
    shutil.rmtree(folder / "postgres", ignore_errors=True)
    return 1


def run(folder: Path, seconds: float, seed: int, keys: int, biased: str) -> report.Outcome:
    """One run, from the start of the processes to the check."""
    bias, mix = BIASED[biased]
    with ExitStack() as running:
        history = History(folder / "history.jsonl")
        running.callback(history.close)
        side = running.enter_context(Side(seed))
        stage = Stage(folder, running, side)
        stage.start()
        print(f"Started in {folder}; seed {seed}, {keys} keys in {seconds:.0f} s", flush=True)
        rate = keys / (seconds * 0.97)
        merchants = Merchants(stage.url, stage.accounts, history, Stream(seed, mix), rate)
        traffic = side.run(merchants.run(seconds, keys, QUIET))
        foe = Nemesis(stage, history, seed, bias)
        began = time.monotonic()
        foe.run(began + seconds, Progress(merchants, traffic, began))
        foe.stop()
        quiet = _calm_down(stage, traffic)
        facts = Facts(LEASE)
        load(facts, stage.database, stage.gateway)
    summary = traffic_of(read(history.path))
    facts.clients = summary.clients
    if summary.defects:
        raise RuntimeError(f"The merchants themselves failed: {summary.defects[:3]}")
    return report.Outcome(seed, seconds, facts, summary, foe.counts, quiet, check(facts))


def _calm_down(stage: Stage, traffic: Future[None]) -> float:
    """Let recovery run out, within bounds; how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < QUIET:
        stage.look_after()
        stage.desks[0].ask("everything")
        if traffic.done() and not open_keys(stage.database):
            break
        time.sleep(2.0)
    with contextlib.suppress(TimeoutError):
        traffic.result(QUIET)
    return time.monotonic() - began


class Progress:
    """Says every now and then how it goes."""

    def __init__(self, merchants: Merchants, traffic: Future[None], began: float) -> None:
        self._tally, self._traffic = merchants.tally, traffic
        self._began = self._told = began

    def __call__(self) -> None:
        if self._traffic.done():
            self._traffic.result()
        now = time.monotonic()
        if now - self._told < PROGRESS:
            return
        self._told = now
        tally = self._tally
        print(
            f"{now - self._began:6.0f} s {tally.keys:7} keys {tally.answered:7} answered"
            f" {tally.requests:8} requests {len(tally.open):4} open",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="of traffic and faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keys", type=int, help=f"by default {RATE:g} a second")
    parser.add_argument("--without", choices=sorted(GUARDS), help="take this guard away first")
    # In this very tree, from which the guard has been taken already.
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _stop_on_signals() -> None:
    """The first signal unwinds everything; more of them do not disturb that."""
    tether.tie_to(os.getppid(), signal.SIGTERM)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(signum: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise StopRequested

    for each in signals:
        signal.signal(each, stop)


if __name__ == "__main__":
    sys.exit(main())
