"""What the commands that decide about a key share: which one, who, why, and whether it changed."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from idempotency.management import key_report
from idempotency.management.key_report import KeyReport
from idempotency.management.report_command import NOTHING

#: The key does not stand as it was seen. Nothing was written.
CHANGED = 3
#: Nothing was written: it takes another word, or another person's decision about a proposal.
REFUSED = 4


def add_arguments(parser: ArgumentParser) -> None:
    """Which key, who decides, why, and whether to do it."""
    parser.add_argument("term", nargs="+", help="As for idempotency_inspect.")
    parser.add_argument("--record", type=int, help="Which one, where the term names several.")
    told = "Kept in the key's story."
    parser.add_argument("--actor", required=True, type=text(150), help=f"Who decides. {told}")
    parser.add_argument("--reason", required=True, type=text(500), help=f"Why. {told}")
    parser.add_argument("--yes", action="store_true", help="Do it.")
    parser.add_argument(
        "--owner",
        type=uuid.UUID,
        help="Only while this attempt, as it was shown, owns the key.",
    )


def text(most: int) -> Callable[[str], str]:
    """A type of argument: something is said, and not too much."""

    def read(given: str) -> str:
        if not 0 < len(given.strip()) <= most:
            raise ArgumentTypeError(f"must have 1 to {most} characters")
        return given.strip()

    return read


def chosen(options: dict[str, Any], using: str) -> KeyReport:
    """The one open key that the options name, as it stands now."""
    reports, _advice = key_report.find_some(" ".join(options["term"]), using)
    if options["record"] is not None:
        reports = [report for report in reports if report.key.pk == options["record"]]
    ready = [report for report in reports if report.facts.is_open]
    if not ready:
        raise CommandError("It is settled, or not there: nothing to end.", returncode=NOTHING)
    if len(ready) > 1:
        titles = "\n".join(f"  {report.title}" for report in ready)
        raise CommandError(f"Several keys; choose one by --record.\n{titles}", returncode=NOTHING)
    if options["owner"] not in (None, ready[0].key.owner):
        raise changed(ready[0])
    return ready[0]


def changed(report: KeyReport) -> CommandError:
    """The key is not as it was seen."""
    words = f"{report.title} changed meanwhile: nothing was written. Look again."
    return CommandError(words, returncode=CHANGED)
