"""How long a request may take: ``X-Request-Deadline-Ms``, at most ``MAX_DEADLINE``.

A handler finds it as ``request.deadline``, the steps of an operation as ``current_deadline()``, and
each grants its own calls less::

    client.post(url, headers={HEADER: request.deadline.child().header()})

It bounds waiting, never recovery. What passes before the claim is answered 504 and nothing ran.
Past its recovery point an operation is not cut short by it: a call that finds no time left comes to
Unknown, and the job, which has no deadline, finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar

from django.http import HttpRequest

from idempotency.client.deadline import HEADER, Deadline, DeadlineExceeded
from idempotency.conf import settings

__all__ = ["HEADER", "Deadline", "DeadlineExceeded", "attach", "current_deadline", "governing"]

_IN_META = f"HTTP_{HEADER.upper().replace('-', '_')}"

clock: Callable[[], float] = time.monotonic

_current: ContextVar[Deadline | None] = ContextVar("idempotency_deadline", default=None)


def attach(request: HttpRequest) -> Deadline:
    """Read a request's deadline as it arrives, and leave it there as ``request.deadline``.

    The header only shortens: without one, or with one that cannot be read, it is ``MAX_DEADLINE``.
    """
    limit = settings().max_deadline.total_seconds()
    deadline = Deadline.from_header(request.META.get(_IN_META), limit=limit, clock=clock)
    request.deadline = deadline  # type: ignore[attr-defined]
    return deadline


def current_deadline() -> Deadline | None:
    """The deadline of the request that this code works for; None in a job, which takes the time
    that recovery needs.

    Known to the thread of the request alone: read it before handing work to another one.
    """
    return _current.get()


class governing:  # noqa: N801  as contextlib's own
    """Make it the current deadline inside the block."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __enter__(self) -> None:
        self._before = _current.set(self._deadline)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._before)
