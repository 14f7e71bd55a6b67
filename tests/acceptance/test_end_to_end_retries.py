"""A merchant's client against the live product, over a network that loses and breaks things."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from idempotency.client import BudgetPolicy, CallPolicy, Fixed, RetryBudget, SafeClient
from tests.acceptance.product import Product, new_key
from tests.counts import repeats
from tests.plugins.fault_proxy import Fault, FaultProxy
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

CHARGES = repeats(1000, everyday=100)
MERCHANTS = 8
#: Of ten answers, how many are lost.
LOST = 3


@pytest.fixture
def proxy(product: Product, start_proxy: Callable[..., FaultProxy]) -> FaultProxy:
    return start_proxy(product.url)


def merchant(proxy: FaultProxy, **policy: Any) -> SafeClient:
    """A client that may retry as often as the network asks it to."""
    return SafeClient(
        proxy.url,
        api_key="sk_test_acme",
        policy=CallPolicy(**policy),
        budget=RetryBudget(BudgetPolicy(ratio=1.0, floor=10)),
    )


def charge(client: SafeClient, key: str, source: str = "tok_visa") -> Any:
    body = {"amount": 1000, "currency": "EUR", "source": source, "description": key}
    return client.post("/v1/charges", json=body, idempotency_key=key)


def test_a_client_that_waits_one_second_for_three_gets_the_first_id(
    product: Product, proxy: FaultProxy
) -> None:
    key = new_key()
    # Three retries span ten seconds, so that a busy machine has answered by then.
    patient = Fixed(2.0)
    with merchant(proxy, attempts=4, attempt_timeout=1.0, backoff=patient) as client:
        answer = charge(client, key, "tok_slow")
    assert answer.status_code == 201
    assert proxy.requests > 1
    (made,) = product.rows("SELECT public_id FROM payments_charge WHERE description = %s", key)
    assert answer.json()["id"] == made["public_id"]
    assert (product.charged(key), product.effects(key)) == (1, 1)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.PASS])
def test_each_fault_of_the_network_is_survived_with_one_charge(
    product: Product, proxy: FaultProxy, fault: Fault
) -> None:
    key = new_key()
    proxy.plan(fault)
    with merchant(proxy, attempt_timeout=1.0) as client:
        answer = charge(client, key)
    assert answer.status_code == 201
    assert proxy.counts == {fault: 1, Fault.PASS: 1}
    assert (product.charged(key), product.effects(key)) == (1, 1)
    product.assert_ledgers_agree()


def test_charges_whose_answers_are_lost_all_succeed_and_each_charges_once(
    product: Product, proxy: FaultProxy, measured: Measure
) -> None:
    keys = [new_key() for _ in range(CHARGES)]
    before = len(product.gateway.ledger())
    # Evenly spread: the breaker's window never holds more of them than it should.
    proxy.choose = lambda head: Fault.LOSE if proxy.requests * LOST % 10 < LOST else Fault.PASS
    with merchant(proxy, attempts=10) as client, ThreadPoolExecutor(MERCHANTS) as pool:
        answers = list(pool.map(lambda key: charge(client, key), keys))
    assert [answer.status_code for answer in answers] == [201] * CHARGES
    assert len({answer.json()["id"] for answer in answers}) == CHARGES
    assert len(product.gateway.ledger()) - before == CHARGES
    assert [product.effects(key) for key in keys] == [1] * CHARGES
    product.assert_ledgers_agree()
    assert proxy.counts[Fault.LOSE] >= CHARGES * LOST // 10
    measured(
        f"{CHARGES} charges, {LOST * 10} % of answers lost: requests a charge",
        f"{proxy.requests / CHARGES:.2f}",
    )
