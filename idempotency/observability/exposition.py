"""The text that Prometheus scrapes: what the processes counted, and how the database stands.

>>> from idempotency.observability.exposition import exposition
>>> body, content_type = exposition(accept=request.headers.get("Accept", ""))   # doctest: +SKIP

Needs ``prometheus-client`` (the extra ``metrics``). Where several processes count, each writes to
``PROMETHEUS_MULTIPROC_DIR``, and whoever is scraped adds up what all of them wrote. The folder has
to be empty when the first of them starts, and a process that ends is to be told of
(``multiprocess.mark_process_dead``), as the documentation of prometheus-client says.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from idempotency.observability import vitals
from idempotency.observability.looks import Look, NoAnswer
from idempotency.observability.vitals import Vitals

logger = logging.getLogger("idempotency")

#: Seconds that a scrape waits for the database.
PATIENCE = 2.0
_look = Look(PATIENCE)


def exposition(*, accept: str = "", using: str | None = None) -> tuple[bytes, str]:
    """The metrics and their content type, in the format that ``accept`` (a header) asks for.

    A database that does not answer within two seconds makes
    ``idempotency_database_answers`` zero and leaves out what it would have said, nothing else.
    """
    registry = CollectorRegistry()
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        # Its own registry: the default one holds this process's share of the same metrics.
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(REGISTRY)
    registry.register(VitalsCollector(using))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class VitalsCollector:
    """Reads the vital signs when it is asked, so that they are as fresh as the scrape."""

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    def collect(self) -> Iterator[Metric]:
        """One gauge for each sign. None has a label but the outbox's, the channel."""
        try:
            found = _look.at(partial(vitals.read, self._using))
        except (DatabaseError, InterfaceError, NoAnswer) as error:
            logger.warning("the database did not say how it stands: %s", type(error).__name__)
            yield _gauge("database_answers", "1 where the database was read for this scrape.", 0)
            return
        yield _gauge("database_answers", "1 where the database was read for this scrape.", 1)
        yield from _of_keys(found)
        yield from _of_outbox(found)
        yield from _of_housekeeping(found)


def _of_keys(found: Vitals) -> Iterator[Metric]:
    for name, what, backlog in (
        ("abandoned", "attempts whose lease is over and whose owner said nothing", found.abandoned),
        ("suspended", "operations without an outcome that nobody is at", found.suspended),
        ("in_doubt", "keys that wait for a decision", found.in_doubt),
    ):
        capped = f"Number of {what}, at most {vitals.MOST}."
        yield _gauge(f"keys_{name}", capped, backlog.number)
        yield _gauge(f"keys_{name}_oldest_seconds", f"Age of the oldest: {what}.", backlog.age)
    if found.keys is not None:
        yield _gauge("keys_estimated", "Keys in the table, as the server guesses.", found.keys)


def _of_outbox(found: Vitals) -> Iterator[Metric]:
    unsent = GaugeMetricFamily(
        "idempotency_outbox_unsent",
        f"Messages that are not delivered, at most {vitals.MOST}.",
        labels=["channel"],
    )
    late = GaugeMetricFamily(
        "idempotency_outbox_due_oldest_seconds",
        "For how long the longest due message could have been sent.",
        labels=["channel"],
    )
    for channel, backlog in found.outbox.items():
        unsent.add_metric([channel], backlog.number)
        late.add_metric([channel], backlog.age.total_seconds())
    yield unsent
    yield late
    dead = f"Messages that were given up and wait for an operator, at most {vitals.MOST}."
    yield _gauge("outbox_dead", dead, found.dead_messages)


def _of_housekeeping(found: Vitals) -> Iterator[Metric]:
    lag = "For how long an expired key has been waiting to be pruned."
    yield _gauge("prune_lag_seconds", lag, found.prune_lag)
    if found.days_ahead is not None:
        ahead = "Days after today that have partitions, without a gap."
        yield _gauge("partition_days_ahead", ahead, found.days_ahead)
        old = "Days older than the retention that are not dropped."
        yield _gauge("partition_droppable_days", old, found.droppable_days)


def _gauge(name: str, documentation: str, value: Any) -> Metric:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    return GaugeMetricFamily(f"idempotency_{name}", documentation, value=number)
