"""What every scheduled job runs in: alone, within its bounds, with a tally.

On PostgreSQL the second run of a job leaves at once, so that the two do not work on the same rows.
Every run is bounded in batches and in time; the next one goes on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import connections, router

from idempotency.conf import settings
from idempotency.models import IdempotencyKey
from idempotency.stores import get_store, locks
from idempotency.stores.base import Store

logger = logging.getLogger("idempotency")

#: How long a run goes on before it leaves the rest to the next one.
BUDGET = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a job did."""

    job: str
    using: str
    #: Keys failed, operations settled, days created or dropped, rows deleted; with ``dry_run``, how
    #: many it would have been.
    done: int = 0
    #: What went wrong and was logged; none of it kept the rest from being done.
    failed: int = 0
    #: The bound was reached and there is more to do.
    more: bool = False
    #: Another run of the job was at work, so this one did nothing.
    busy: bool = False
    dry_run: bool = False
    #: Lines for people: the plan of a partition job, and what became of it.
    details: tuple[str, ...] = ()


@dataclass(slots=True)
class Run:
    """A run under way: its bounds and its tally."""

    using: str
    dry_run: bool
    deadline: float
    done: int = 0
    failed: int = 0
    more: bool = False
    details: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return get_store(self.using)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def batches(self) -> Iterator[None]:
        """One turn a batch; reaching the end of it means that there may be more."""
        for _ in range(settings().max_batches):
            if self.out_of_time:
                break
            yield
        self.more = True

    def walk(self, prune: Callable[[int], tuple[int, int | None]]) -> None:
        """Walk a table by its primary key. Only batches that deleted something count to the bound:
        behind long-lived rows there may be many that can go.

        ``prune``: deletes what may go of a batch after a number; how many, and the number of the
        batch's last row, None where the table ends.
        """
        after: int | None = 0
        for _ in self.batches():
            pruned = 0
            while after is not None and not pruned and not self.out_of_time:
                pruned, after = prune(after)
                self.done += pruned
            if after is None:
                return


def run_job(
    job: str,
    work: Callable[[Run], None],
    using: str | None,
    dry_run: bool = False,
    *,
    bounded: bool = True,
) -> Result:
    """Run a job on a database, by default the one that keys are written to, unless another run of
    it is at work there; and say what it did. ``bounded``: for ``BUDGET`` at most, and else for as
    long as it takes."""
    alias = using or router.db_for_write(IdempotencyKey)
    with locks.alone(alias, job) as alone:
        if not alone:
            logger.info("%s: another run is at work on %s, so this one leaves", job, alias)
            return Result(job, alias, busy=True, dry_run=dry_run)
        seconds = BUDGET.total_seconds() if bounded else math.inf
        run = Run(alias, dry_run, deadline=time.monotonic() + seconds)
        work(run)
    result = Result(
        job, alias, run.done, run.failed, run.more, dry_run=dry_run, details=tuple(run.details)
    )
    logger.log(logging.INFO if run.done or run.failed else logging.DEBUG, "%s", result)
    return result


def reachable(using: str) -> bool:
    """Whether the connection survived an error: if not, the next row would fail as well."""
    connection = connections[using]
    return connection.connection is not None and connection.is_usable()
