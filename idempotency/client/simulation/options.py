"""The options of the command line, and what may be given for them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from idempotency.client.simulation import contention, recovery, strategies, tails

__all__ = ["DESCRIPTION", "add_arguments", "seeds_told"]

DESCRIPTION = """\
Simulate what retries do to a server.

  contention  Many clients update one row at once, each until it has succeeded. Compare how many
              calls each strategy needs: jitter is what keeps clients out of each other's way.
  recovery    A busy server has an outage. Compare the good answers after it: jitter alone does not
              end a retry storm, a budget does.
  tails       One answer in twenty is slow. Compare the tail with and without a second copy.

Everything is drawn from seeds: the same seeds give the same numbers. Pictures need the extra:
pip install "django-idempotency[simulation]"
"""

#: More are a slip of the hand.
MOST_SEEDS = 10_000

EXIT_CODES = """\
Exit codes: 0 done; 1 a file cannot be written, or a package is missing; 2 a wrong option;
130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each model."""
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    models = parser.add_subparsers(dest="model", required=True, metavar="MODEL")
    _add_contention(models.add_parser("contention", help="calls until all clients have succeeded"))
    _add_recovery(models.add_parser("recovery", help="load and good answers around an outage"))
    _add_tails(models.add_parser("tails", help="slow answers, with and without hedging"))


def _add_contention(parser: argparse.ArgumentParser) -> None:
    _describe(parser, contention.__doc__)
    parser.add_argument(
        "--clients",
        type=_counts,
        default=[10, 100, 1000],
        metavar="N,N,…",
        help="How many clients; several numbers give a curve. Default: 10,100,1000. Ten thousand "
        "take some seconds with numpy and a minute or two without.",
    )
    _add_strategies(parser, contention.BASE, contention.CAP, contention.INTERVAL)
    parser.add_argument(
        "--engine",
        choices=("auto", "rounds", "heap"),
        default="auto",
        help="How to compute: rounds (numpy, fast), heap (plain Python), or by default the faster "
        "one that is installed. The results agree, but not number by number.",
    )
    parser.add_argument(
        "--arrivals",
        type=Path,
        metavar="FILE",
        help="Draw the calls per 100 ms at the last number of clients, as PNG.",
    )
    _add_common(parser, "Draw calls by clients, as PNG.", seeds="1-5")


def _add_recovery(parser: argparse.ArgumentParser) -> None:
    _describe(parser, recovery.__doc__)
    normal = recovery.Scenario()
    for name, text in {
        "rate": "Calls a second, retries not counted.",
        "capacity": "Requests that the server can serve in a second.",
        "rejection": "What turning a request away costs, of what serving it costs.",
        "outage-from": "When the outage begins, in seconds.",
        "outage-until": "When it ends.",
        "until": "When the run ends.",
    }.items():
        default = getattr(normal, name.replace("-", "_"))
        help_text = f"{text} Default: {default:g}."
        parser.add_argument(f"--{name}", type=_number, default=default, metavar="X", help=help_text)
    parser.add_argument(
        "--attempts",
        type=_count,
        default=normal.attempts,
        metavar="N",
        help=f"Attempts a call at most, first try included. Default: {normal.attempts}.",
    )
    parser.add_argument(
        "--budget",
        type=_number,
        default=0.1,
        metavar="X",
        help="Retries for each first attempt in the runs with a budget. Default: 0.1.",
    )
    _add_strategies(parser, recovery.BASE, recovery.CAP, recovery.INTERVAL)
    _add_common(parser, "Draw load and good answers over time, as PNG.", seeds="1-3")


def _add_tails(parser: argparse.ArgumentParser) -> None:
    _describe(parser, tails.__doc__)
    parser.add_argument(
        "--requests",
        type=_count,
        default=100_000,
        metavar="N",
        help="How many requests. Default: 100000.",
    )
    parser.add_argument(
        "--hedge-at",
        type=_share,
        default=0.95,
        metavar="Q",
        help="The quantile of latency after which the second copy is sent. Default: 0.95.",
    )
    _add_common(parser, "Draw the tail of latency, as PNG.", seeds="1-3")


def _describe(parser: argparse.ArgumentParser, text: str | None) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = text
    parser.epilog = EXIT_CODES


def _add_strategies(
    parser: argparse.ArgumentParser, base: float, cap: float, interval: float
) -> None:
    parser.add_argument(
        "--strategies",
        type=_names,
        default=list(strategies.NAMES),
        metavar="NAME,…",
        help=f"Which of {', '.join(strategies.NAMES)}. Default: all.",
    )
    for name, default, text in (
        ("base", base, "The strategies' base"),
        ("cap", cap, "Their longest wait"),
        ("interval", interval, "The wait of the fixed strategy"),
    ):
        help_text = f"{text}, in seconds. Default: {default:g}."
        parser.add_argument(f"--{name}", type=_number, default=default, metavar="S", help=help_text)


def _add_common(parser: argparse.ArgumentParser, drawn: str, *, seeds: str) -> None:
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=_seeds(seeds),
        metavar="N,N-N,…",
        help=f"One run with each; tables and curves show the means. Default: {seeds}.",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="Write every run, as CSV.")
    parser.add_argument("--png", type=Path, metavar="FILE", help=drawn)
    parser.add_argument("--quiet", action="store_true", help="No progress bar.")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _counts(text: str) -> list[int]:
    return sorted({_count(part) for part in text.split(",")})


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in strategies.NAMES:
            known = ", ".join(strategies.NAMES)
            raise argparse.ArgumentTypeError(f"there is no strategy {name!r}, only {known}")
    return names


def _seeds(text: str) -> list[int]:
    seeds: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high:
            raise argparse.ArgumentTypeError(f"{part} runs backward")
        if high - low >= MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{part} is more than {MOST_SEEDS} seeds")
        seeds.update(range(low, high + 1))
    return sorted(seeds)


def seeds_told(seeds: Sequence[int]) -> str:
    """Sorted seeds as the option takes them: ``seeds 1-5, 9``."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and parts[-1][-1] == seed - 1:
            parts[-1][1:] = [seed]
        else:
            parts.append([seed])
    told = ", ".join("-".join(map(str, part)) for part in parts)
    return f"seed{'s' if len(seeds) > 1 else ''} {told}"
