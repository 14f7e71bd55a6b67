"""What the package gives its users, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from idempotency import client

#: What users may import. A name that leaves this list breaks them.
PUBLIC = """
    Admission Answer AsyncCaller AsyncDeadlineTransport AsyncHttpx2Transport
    AsyncSafeClient AsyncTransport Attempt Backoff BodyNotRepeatable BreakerOpen
    BreakerPolicy BreakerProtocol BreakerRegistry BudgetPolicy BudgetProtocol Bulkhead
    BulkheadFull CallPolicy CallResult Caller Cancellation CircuitBreaker Deadline
    DeadlineExceeded DeadlineTransport Decision DecorrelatedJitter EqualJitter
    Exponential Fixed FullJitter HedgePolicy Hedging Httpx2Transport Immediate
    InsideTransaction LoggingObserver NoAnswer Observer Outcome Problem
    PrometheusObserver RedisLink Request Response RetryBudget SafeClient SharedBreaker
    SharedBudget State Stop Ticket Transport Trouble Verdict classify new_key read_body
"""

ALONE = """
import sys
from idempotency.client import *
from idempotency.client import shared
unwanted = {"django", "rest_framework", "celery", "idempotency.conf", "idempotency.models"}
loaded = unwanted & set(sys.modules)
assert not loaded, loaded
"""

WITHOUT_EXTRAS = """
import sys
sys.modules["redis"] = sys.modules["httpx2"] = sys.modules["django"] = None
from idempotency.client import Caller, CircuitBreaker, Deadline, FullJitter, RetryBudget, classify
import idempotency.client
for name, needed in {"SharedBreaker": "redis", "SafeClient": "httpx2"}.items():
    assert name in dir(idempotency.client)
    try:
        getattr(idempotency.client, name)
    except ModuleNotFoundError as error:
        assert error.name == needed
    else:
        raise AssertionError(f"{needed} was blocked")
"""


@pytest.mark.parametrize("program", [ALONE, WITHOUT_EXTRAS], ids=["no Django", "no extras"])
def test_the_client_half_loads_without(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        client.Nonsense  # noqa: B018


def test_the_public_names_are_these() -> None:
    assert client.__all__ == PUBLIC.split()
