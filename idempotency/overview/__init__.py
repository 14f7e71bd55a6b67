"""How the service stands, in one look: for the page of operators and for ``idempotency_status``.

Bounded like everything else on a table of ten million keys: no part counts what is settled, each
has a share of ``PATIENCE``, and one that fails leaves the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import DatabaseError, connections, router
from django.utils.translation import gettext as _

from idempotency import metrics, partitions, traffic
from idempotency.conf import settings
from idempotency.models import IdempotencyKey
from idempotency.observability import vitals
from idempotency.overview import storage
from idempotency.overview.attention import attention
from idempotency.overview.dependencies import read_dependencies
from idempotency.overview.facts import Overview, Query
from idempotency.stores import clock
from idempotency.stores.bounds import QueryTooSlow, statement_timeout

__all__ = ["Overview", "read"]

T = TypeVar("T")

logger = logging.getLogger("idempotency")

#: What the database gets for all statements together.
PATIENCE = timedelta(seconds=0.8)


def read(using: str | None = None) -> Overview:
    """Look at the database that keys are written to, or at ``using``, and at Redis.

    Raises what the database raises when it cannot be asked for the time.
    """
    alias = using or router.db_for_write(IdempotencyKey)
    look = _Look(alias)
    parts: dict[str, Any] = {
        "keys": look.at(_("keys"), lambda: storage.read_keys(alias, look.now)),
        "vitals": look.at(_("vital signs"), lambda: vitals.read(alias)),
        "storage": look.at(_("storage"), lambda: storage.read_storage(alias, look.now)),
        "traffic": traffic.read(),
        "dependencies": read_dependencies(),
    }
    missing = "" if parts["traffic"] else _why_no_traffic()
    shown = Overview(
        at=look.now,
        using=alias,
        traffic_missing=missing,
        problems=tuple(look.problems),
        queries=tuple(look.queries),
        **parts,
    )
    return attention(shown)


class _Look:
    """One look at a database, part by part."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._until = time.monotonic() + PATIENCE.total_seconds()
        self.problems: list[str] = []
        self.queries: list[Query] = []
        with self._noted():
            self.now = _now(using)

    def at(self, name: str, question: Callable[[], T]) -> T | None:
        """The answer; None, and a problem, where the database fails or takes too long."""
        left = timedelta(seconds=max(0.05, self._until - time.monotonic()))
        try:
            with statement_timeout(self._using, left), self._noted():
                return question()
        except QueryTooSlow:
            self.problems.append(_("%s: the database gave the query up in time.") % name)
        except DatabaseError as error:
            logger.warning("the overview lacks %s", name, exc_info=True)
            self.problems.append(f"{name}: {str(error).strip() or type(error).__name__}")
        return None

    @contextmanager
    def _noted(self) -> Iterator[None]:
        with connections[self._using].execute_wrapper(self._note):
            yield

    def _note(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.queries.append(Query(sql, time.perf_counter() - began))


def _now(using: str) -> datetime:
    if connections[using].vendor == "postgresql":
        return partitions.database_now(using)
    # Only to be shown, beside ages that the database reckons.
    return clock.frozen() or datetime.now(UTC)


def _why_no_traffic() -> str:
    if settings().redis_url is None:
        return _(
            "Requests per minute are added up in Redis: set IDEMPOTENCY['REDIS_URL'] and install "
            "the extras “redis” and “metrics”."
        )
    if metrics.REQUESTS is None:
        return _("Nothing is counted: install the extra “metrics”.")
    return _("Redis does not answer. What happens meanwhile is not added up.")
