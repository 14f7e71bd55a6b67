"""The connection to the database breaks at COMMIT, where nobody can know what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest

from tests.acceptance.product import Product, new_key, wait_until
from tests.acceptance.wire_cutter import Side, WireCutter

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product]) -> Product:
    return make_product(IDEMPOTENCY_LEASE="2", WEB_WORKERS="1")


@pytest.fixture(scope="module")
def wire(product: Product) -> Iterator[WireCutter]:
    """The product, started behind a relay; what the test reads does not go through it."""
    with WireCutter(product.database) as cutter:
        product.env["DATABASE_URL"] = cutter.url
        product.start()
        # The first request also makes sure of the day's partition, in a transaction of its own.
        assert product.transfer(new_key()).status_code == 201
        yield cutter


def test_a_worker_that_cannot_make_sure_of_the_day_pays_all_the_same(
    wire: WireCutter, product: Product
) -> None:
    key = new_key()
    before = product.workers()
    with pytest.raises(httpx2.TransportError):
        product.transfer(new_key(), fault="kill@claimed")
    wait_until(lambda: product.workers() != before)
    wire.cut("before", 1)
    assert product.transfer(key).status_code == 201
    assert wire.has_cut
    assert "could not make sure of the partitions" in product.log()
    assert product.effects(key) == 1


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "commit"),
    [("transfer", 1), ("charge", 1), ("charge", 2)],
    ids=["a transfer", "a charge's intent", "a charge's result"],
)
def test_case_38_a_connection_lost_at_commit_is_503_and_the_retry_finds_the_truth(
    product: Product, wire: WireCutter, kind: str, commit: int, side: Side
) -> None:
    key = new_key()
    wire.cut(side, commit)
    answer = product.pay(kind, key)
    assert wire.has_cut
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_pending")
    assert int(answer.headers["Retry-After"]) >= 1
    completed = side == "after" and (kind, commit) != ("charge", 1)
    assert product.effects(key) == completed
    assert product.state(key) == ("succeeded" if completed else "processing")

    retried = product.retry(lambda: product.pay(kind, key))
    assert (retried.status_code, "Idempotent-Replayed" in retried.headers) == (201, completed)
    assert product.effects(key) == 1
    assert product.charged(key) == (kind == "charge")
    product.assert_ledgers_agree()
