"""A progress bar on standard error, where rich is installed and somebody looks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar"]

#: Steps in which the bar moves. A simulation tells far more often than anybody can see.
STEPS = 500


@contextmanager
def bar(title: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Give a function that says how many more of ``total`` are done."""
    if quiet or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        pending = 0

        def advance(done: int) -> None:
            nonlocal pending
            pending += done
            if pending >= total / STEPS:
                progress.advance(task, pending)
                pending = 0

        yield advance
        progress.advance(task, pending)
