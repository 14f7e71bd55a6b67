"""The worker is killed at each point of a request, and the client sends the request again."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2
import pytest

from tests.acceptance.product import Product, new_key, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

PRODUCT = {"IDEMPOTENCY_LEASE": "4"}


@dataclass(frozen=True)
class Point:
    """Where the worker dies, and what is true from then on until somebody recovers."""

    kind: str
    name: str
    state: str = "processing"
    #: How often the gateway, and our ledger, have moved money.
    charged: int = 0
    posted: int = 0

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


POINTS = [
    Point("transfer", "claimed"),
    Point("transfer", "work"),
    Point("transfer", "committed", "succeeded", posted=1),
    Point("charge", "claimed"),
    Point("charge", "work"),
    Point("charge", "prepared"),
    Point("charge", "called", charged=1),
    Point("charge", "finalize", charged=1),
    Point("charge", "committed", "succeeded", charged=1, posted=1),
]


def kill(product: Product, point: Point, key: str) -> None:
    """Send a request whose worker dies at the point; the client gets no answer."""
    before = set(product.workers())
    with pytest.raises(httpx2.TransportError):
        product.pay(point.kind, key, fault=f"kill@{point.name}")
    wait_until(lambda: before - set(product.workers()))
    assert product.state(key) == point.state
    assert (product.charged(key), product.effects(key)) == (point.charged, point.posted)


@pytest.fixture(scope="module")
def killed(product: Product) -> dict[Point, str]:
    """One key for each point, whose worker is dead. Their leases then run out together."""
    keys = {point: new_key(str(point)) for point in POINTS}
    for point, key in keys.items():
        kill(product, point, key)
    return keys


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_cases_35_36_43_a_retry_after_a_kill_leaves_one_effect_and_one_answer(
    product: Product, killed: dict[Point, str], point: Point
) -> None:
    key = killed[point]
    answer = product.retry(lambda: product.pay(point.kind, key))
    assert answer.status_code == 201
    # The dead worker's answer where it had one, else the first answer, which bears no mark.
    completed = point.state == "succeeded"
    assert ("Idempotent-Replayed" in answer.headers) == completed
    assert product.key(key)["attempt"] == (1 if completed else 2)
    assert product.events(key) == ([] if completed else ["takeover"])

    again = product.pay(point.kind, key)
    assert (again.status_code, again.content) == (201, answer.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert product.effects(key) == 1
    assert product.charged(key) == (1 if point.kind == "charge" else 0)


def test_once_every_client_has_retried_the_ledgers_agree(
    product: Product, killed: dict[Point, str]
) -> None:
    for point, key in killed.items():
        assert product.retry(lambda it=point, key=key: product.pay(it.kind, key)).status_code == 201
    product.assert_ledgers_agree()


def test_case_35_after_a_kill_the_key_is_in_use_until_its_lease_ends(product: Product) -> None:
    key = new_key()
    kill(product, POINTS[0], key)
    busy = product.transfer(key)
    assert (busy.status_code, busy.json()["code"]) == (409, "idempotency_key_in_use")
    assert 1 <= int(busy.headers["Retry-After"]) <= 4
    assert product.effects(key) == 0
    assert product.retry(lambda: product.transfer(key)).status_code == 201
    assert product.effects(key) == 1


def test_case_36_an_answer_that_a_kill_kept_back_is_replayed_at_once(product: Product) -> None:
    key = new_key()
    kill(product, POINTS[2], key)
    # Once: nothing to wait for, the work and its answer are committed.
    answer = product.transfer(key)
    assert (answer.status_code, answer.headers["Idempotent-Replayed"]) == (201, "true")
    assert product.effects(key) == 1


def test_case_43_a_charge_that_was_resumed_reached_the_gateway_under_one_key(
    product: Product,
) -> None:
    key = new_key()
    kill(product, POINTS[6], key)
    (unsaved,) = [entry for entry in product.gateway.ledger() if _is_of(product, entry, key)]
    assert product.retry(lambda: product.charge(key)).status_code == 201
    # The second call, had it come with another key, would be another entry here.
    (saved,) = [entry for entry in product.gateway.ledger() if _is_of(product, entry, key)]
    assert saved == unsaved
    assert len(product.gateway.charges(saved["idempotency_key"])) == 1


def test_a_kill_in_the_middle_of_a_refund_refunds_once(product: Product) -> None:
    charge = product.charge(new_key()).json()
    path, key = f"/v1/charges/{charge['id']}/refunds", new_key()
    with pytest.raises(httpx2.TransportError):
        product.post(path, key, {"amount": 300}, fault="kill@called")
    answer = product.retry(lambda: product.post(path, key, {"amount": 300}))
    assert answer.status_code == 201
    refunds = [entry for entry in product.gateway.ledger() if entry["kind"] == "refund"]
    assert [entry["reference"] for entry in refunds] == [answer.json()["id"]]
    assert product.get(f"/v1/charges/{charge['id']}").json()["amount_refunded"] == 300


def _is_of(product: Product, entry: dict[str, object], key: str) -> bool:
    found = product.rows("SELECT public_id FROM payments_charge WHERE description = %s", key)
    return entry["reference"] in [row["public_id"] for row in found]
