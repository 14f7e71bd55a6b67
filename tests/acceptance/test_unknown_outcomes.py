"""An answer is lost, the client never returns, and nobody helps: settled from the gateway's books.

One product believes its gateway to dedupe, the other knows that it does not, and both ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest

from config import embedded
from tests.acceptance.product import Product, new_key, wait_until
from tests.acceptance.test_leases import submit
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

LEASE, BEAT, AFTER, ALERT = 5, 1, 1, 4


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product], valkey: embedded.Valkey) -> Iterator[Product]:
    """The product with Celery, whose gateway charges again whatever the key."""
    product = make_product(
        GATEWAY_DEDUPES="false",
        IDEMPOTENCY_LEASE=str(LEASE),
        IDEMPOTENCY_BEAT=str(BEAT),
        IDEMPOTENCY_RECONCILE_AFTER=str(AFTER),
        IDEMPOTENCY_RECONCILE_ALERT_AFTER=str(ALERT),
        REDIS_URL=valkey.url,
    ).start()
    product.gateway.control(dedupe=False)
    with product.celery():
        yield product


def seconds(product: Product, key: str) -> float:
    """From the claim to the end, by the database's clock."""
    row = product.key(key)
    taken: float = (row["completed_at"] - row["created_at"]).total_seconds()
    return taken


def in_the_admin(product: Product, page: str) -> str:
    """What an operator sees there."""
    with httpx2.Client(base_url=product.url, trust_env=False, timeout=30) as browser:
        submit(browser, "/admin/login/", username="admin", password="admin", next="/admin/")
        return browser.get(f"/admin/{page}").raise_for_status().text


def assert_settled(product: Product, key: str) -> None:
    assert product.state(key) == "succeeded"
    assert (product.effects(key), product.charged(key)) == (1, 1)
    (charge,) = product.rows("SELECT * FROM payments_charge WHERE description = %s", key)
    assert charge["status"] == "succeeded"
    page = in_the_admin(product, f"payments/charge/{charge['id']}/change/")
    assert (charge["public_id"] in page, "succeeded" in page) == (True, True)
    product.assert_ledgers_agree()


def test_a_charge_whose_answer_was_lost_is_settled_without_a_second_charge(
    product: Product, measured: Measure
) -> None:
    key = new_key()

    answer = product.charge(key, source="tok_answer_lost")
    assert (answer.status_code, answer.json()["code"]) == (409, "outcome_in_doubt")

    wait_until(lambda: product.state(key) == "succeeded")
    assert_settled(product, key)
    assert product.events(key) == ["in_doubt", "resolved"]
    story = in_the_admin(product, f"idempotency/idempotencykey/{product.key(key)['id']}/change/")
    assert "gateway was asked, and has done it" in story
    name = f"beat {BEAT} s: answer lost, no dedupe, settled without the client"
    measured(name, f"{seconds(product, key):.1f} s")


def test_a_worker_that_died_with_the_answer_is_settled_without_a_second_charge(
    product: Product, measured: Measure
) -> None:
    key = new_key()

    with pytest.raises(httpx2.TransportError):
        product.charge(key, fault="kill@called")

    wait_until(lambda: product.state(key) == "succeeded")
    assert_settled(product, key)
    name = f"lease {LEASE} s, beat {BEAT} s: killed with the answer, no dedupe, settled"
    measured(name, f"{seconds(product, key):.1f} s")


def test_while_the_gateway_is_silent_it_is_in_doubt_and_somebody_is_called_once(
    product: Product,
) -> None:
    key = new_key()
    product.charge(key, source="tok_answer_lost")
    product.gateway.kill()
    digest = bytes(product.key(key)["digest"])[:4].hex()

    try:
        wait_until(lambda: alarms(product, digest))
        assert product.state(key) == "in_doubt"
        assert key in in_the_admin(product, "idempotency/idempotencykey/?attention=in_doubt")
        assert product.effects(key) == 0
    finally:
        product.gateway.start()

    wait_until(lambda: product.state(key) == "succeeded")
    assert_settled(product, key)
    assert alarms(product, digest) == 1


def alarms(product: Product, digest: str) -> int:
    """How often the worker logged that this key is still open."""
    logs = "".join(log.read_text(errors="replace") for log in product.folder.glob("celery-*.log"))
    lines = [line for line in logs.splitlines() if "is still open after" in line and digest in line]
    return sum("error" in line.lower() for line in lines)
