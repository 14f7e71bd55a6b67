"""What a request hands on to whoever it calls: its id, and its trace.

The id is the caller's (``X-Request-ID``) where it is one, and a new one otherwise; the logs of this
library name it. ``outgoing_headers()`` are for calls of the request's own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from idempotency import spans

__all__ = ["HEADER", "accept", "begin", "current_request_id", "outgoing_headers", "serving"]

HEADER = "X-Request-ID"

#: What is safe in a log, a header and a shell.
_ACCEPTABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+-]{0,127}")
_request_id: ContextVar[str] = ContextVar("idempotency_request_id", default="")


def accept(said: str | None) -> str:
    """The caller's id where it is acceptable, else a new one (32 hexadecimal digits).

    Acceptable are 1 to 128 letters, digits and ``._:=+-``, beginning with a letter or digit.
    """
    return said if said and _ACCEPTABLE.fullmatch(said) else uuid.uuid4().hex


def current_request_id() -> str:
    """The id of the request, or the task, that this code works for; empty where there is none."""
    return _request_id.get()


def begin(request_id: str) -> None:
    """Work for that request from now on; for none where it is empty."""
    _request_id.set(request_id)


@contextmanager
def serving(request_id: str) -> Iterator[None]:
    """Work for that request inside the block."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def outgoing_headers() -> dict[str, str]:
    """Headers for a call that this request makes: ``X-Request-ID``, and the trace context where
    OpenTelemetry is installed. Empty outside a request without a trace."""
    headers = spans.context_headers()
    if request_id := _request_id.get():
        headers[HEADER] = request_id
    return headers
