"""The worker is killed at each point of a request, and the client never comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest

from config import embedded
from tests.acceptance.product import Product, new_key, wait_until
from tests.acceptance.test_crashes import POINTS, Point, kill
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

LEASE, BEAT = 5, 1
#: Seconds for the job itself, and for a machine that does other things as well.
SLACK = 6


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product], valkey: embedded.Valkey) -> Iterator[Product]:
    """The product with Celery, whose queue is nobody else's."""
    product = make_product(
        IDEMPOTENCY_LEASE=str(LEASE), IDEMPOTENCY_BEAT=str(BEAT), REDIS_URL=valkey.url
    ).start()
    with product.celery():
        yield product


def settle(product: Product, key: str) -> float:
    """Wait until the key is settled. Seconds from the claim, by the database's clock."""
    wait_until(lambda: product.state(key) != "processing", LEASE + BEAT + SLACK)
    row = product.key(key)
    seconds: float = (row["completed_at"] - row["created_at"]).total_seconds()
    return seconds


@pytest.fixture(scope="module")
def killed(product: Product) -> dict[Point, str]:
    """One key for each point, whose worker is dead. Their leases then run out together."""
    keys = {point: new_key(str(point)) for point in POINTS}
    for point, key in keys.items():
        kill(product, point, key)
    return keys


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_key_whose_client_never_comes_back_is_settled_within_its_lease_and_one_beat(
    product: Product, killed: dict[Point, str], measured: Measure, point: Point
) -> None:
    key = killed[point]
    seconds = settle(product, key)
    assert seconds <= LEASE + BEAT + SLACK
    # What the gateway may have been asked for is finished; what only we had begun never was.
    finished = point.name in ("prepared", "called", "finalize", "committed")
    assert product.state(key) == ("succeeded" if finished else "failed")
    assert product.effects(key) == finished
    assert product.charged(key) == (finished and point.kind == "charge")
    name = f"lease {LEASE} s, beat {BEAT} s: killed at {point}, settled without the client"
    measured(name, f"{seconds:.1f} s")


def test_once_every_key_is_settled_the_ledgers_agree(
    product: Product, killed: dict[Point, str]
) -> None:
    for key in killed.values():
        settle(product, key)
    product.assert_ledgers_agree()


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_client_that_comes_back_later_still_gets_one_effect(
    product: Product, killed: dict[Point, str], point: Point
) -> None:
    key = killed[point]
    settle(product, key)
    settled = product.state(key)
    answer = product.pay(point.kind, key)
    assert answer.status_code == 201
    assert ("Idempotent-Replayed" in answer.headers) == (settled == "succeeded")
    assert product.effects(key) == 1
    assert product.charged(key) == (point.kind == "charge")


def test_a_refund_whose_client_never_comes_back_is_settled_and_refunds_once(
    product: Product,
) -> None:
    charge = product.charge(new_key()).json()
    key = new_key()
    with pytest.raises(httpx2.TransportError):
        product.post(f"/v1/charges/{charge['id']}/refunds", key, {}, fault="kill@called")
    settle(product, key)
    assert product.state(key) == "succeeded"
    (refund,) = [entry for entry in product.gateway.ledger() if entry["kind"] == "refund"]
    assert refund["amount"] == charge["amount"]
    assert product.get(f"/v1/charges/{charge['id']}").json()["amount_refunded"] == 1000
    product.assert_ledgers_agree()
