"""Spans for OpenTelemetry, where its API is installed (the extra ``opentelemetry``): claim, run,
call, complete. Without it nothing is imported, and no function is wrapped. A provider that is set
while requests are served is noticed within a second.

==========================  ====================================================================
``idempotency.claim``       the statement that wins the key, or says why not
``idempotency.run``         the handler, in its transaction
``idempotency.call``        an operation's call of the other side, which gets the trace context
``idempotency.complete``    the answer, and an operation's result, written with the key's end
==========================  ====================================================================

Attributes: ``idempotency.route``, ``idempotency.key`` (the digest that logs show), and
``idempotency.attempt`` where there is one. An error is named and never quoted: its text may hold
what a row holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from idempotency.core.decisions import Lease
from idempotency.core.keys import Scope, log_digest

try:
    from opentelemetry import propagate, trace

    _tracer: Any = trace.get_tracer("idempotency")
except ImportError:  # the ``opentelemetry`` extra is not installed
    _tracer = None

Function = TypeVar("Function", bound=Callable[..., Any])
#: Makes a span's attributes of the function's arguments.
Describe = Callable[..., Mapping[str, Any]]


def traced(name: str, describe: Describe) -> Callable[[Function], Function]:
    """Make a span of every call of a function."""
    if _tracer is None:
        return lambda function: function

    def wrap(function: Function) -> Function:
        @wraps(function)
        def in_span(*args: Any, **kwargs: Any) -> Any:
            if not _is_recorded(int(time.monotonic())):
                return function(*args, **kwargs)
            with _tracer.start_as_current_span(
                name, record_exception=False, set_status_on_exception=False
            ) as span:
                if span.is_recording():
                    span.set_attributes(dict(describe(*args, **kwargs)))
                try:
                    return function(*args, **kwargs)
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(trace.StatusCode.ERROR)
                    raise

        return cast(Function, in_span)

    return wrap


@lru_cache(maxsize=1)
def _is_recorded(second: int) -> bool:
    """Whether anybody listens: a span that nobody keeps would cost ten times this question, which
    is asked once in a second, since OpenTelemetry looks into the environment for its answer."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def of_scope(scope: Scope) -> dict[str, Any]:
    """The attributes of a request."""
    return {"idempotency.route": scope.route, "idempotency.key": log_digest(scope.digest)}


def of_lease(lease: Lease) -> dict[str, Any]:
    """The attributes of an attempt."""
    return {**of_scope(lease.scope), "idempotency.attempt": lease.attempt}


def context_headers() -> dict[str, str]:
    """The trace context of the present span, as headers; empty where there is none."""
    headers: dict[str, str] = {}
    if _tracer is not None:
        propagate.inject(headers)
    return headers
