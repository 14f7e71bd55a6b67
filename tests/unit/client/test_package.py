"""What the package gives its users, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from idempotency import client

#: What users may import. A name that leaves this list breaks them.
PUBLIC = """
    Admission Answer Backoff BreakerOpen BreakerPolicy BreakerProtocol BreakerRegistry
    BudgetPolicy BudgetProtocol Bulkhead BulkheadFull CircuitBreaker Deadline
    DeadlineExceeded Decision DecorrelatedJitter EqualJitter Exponential Fixed FullJitter
    HedgePolicy Hedging Immediate Outcome Problem RedisLink RetryBudget SharedBreaker
    SharedBudget State Ticket Trouble Verdict classify
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
from idempotency.client import CircuitBreaker, Deadline, FullJitter, RetryBudget, classify
import idempotency.client
assert "SharedBreaker" in dir(idempotency.client)
try:
    idempotency.client.SharedBreaker
except ModuleNotFoundError as error:
    assert error.name == "redis"
else:
    raise AssertionError("redis was blocked")
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
