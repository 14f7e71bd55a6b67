"""A gateway that answers nobody, and what the rest of the product notices of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.product import PATIENCE, Product, new_key, wait_until
from tests.plugins.fault_proxy import Fault, FaultProxy

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

CALLS = 3


@pytest.fixture
def opened() -> Iterator[threading.Event]:
    """Set: the gateway answers. Until then it takes every call and says nothing."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def stalled(
    make_product: Callable[..., Product],
    start_proxy: Callable[..., FaultProxy],
    opened: threading.Event,
) -> Product:
    """One process with the threads that gunicorn has by default, and a gateway that stalls."""
    product = make_product(
        WEB_WORKERS="1", WEB_THREADS=str(CALLS + 1), GATEWAY_CALLS=str(CALLS), GATEWAY_TIMEOUT="30"
    )
    proxy = start_proxy(product.gateway.url)
    product.env["GATEWAY_URL"] = proxy.url

    def choose(head: bytes) -> Fault:
        assert opened.wait(PATIENCE)
        return Fault.PASS

    proxy.choose = choose
    return product.start()


def test_charges_that_stall_leave_a_thread_for_everybody_else(
    stalled: Product, opened: threading.Event
) -> None:
    keys, refused = [new_key() for _ in range(CALLS)], new_key()
    with ThreadPoolExecutor(CALLS) as pool:
        try:
            charges = [pool.submit(stalled.charge, key) for key in keys]
            wait_until(lambda: len(stalled.rows(_PENDING)) == CALLS)

            answer = stalled.charge(refused)
            assert (answer.status_code, answer.json()["code"]) == (503, "downstream_unavailable")
            assert answer.json()["retry"] == "same_key"
            assert int(answer.headers["Retry-After"]) >= 1
            assert stalled.rows(_CHARGE_OF, refused) == []
            assert stalled.rows(_KEY, refused) == []  # it was not even claimed

            assert stalled.transfer(new_key()).status_code == 201
            assert stalled.get("/v1/charges").status_code == 200
            assert not any(charge.done() for charge in charges)
        finally:
            opened.set()
        assert [charge.result().status_code for charge in charges] == [201] * CALLS
    assert stalled.charge(refused).status_code == 201
    assert [stalled.charged(key) for key in [*keys, refused]] == [1] * (CALLS + 1)
    stalled.assert_ledgers_agree()


_PENDING = "SELECT id FROM payments_charge WHERE status = 'pending'"
_KEY = "SELECT id FROM idempotency_idempotencykey WHERE key = %s"
_CHARGE_OF = "SELECT id FROM payments_charge WHERE description = %s"
