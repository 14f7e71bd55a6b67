"""An owner that is slow, not dead: paused at a gate while others take over, reclaim or end it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.product import Product, new_key, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

# The order of those who wait for a lock is what some tests are about, so nobody may give up.
PRODUCT = {
    "IDEMPOTENCY_LEASE": "2",
    "DATABASE_LOCK_TIMEOUT": "30",
    "DATABASE_STATEMENT_TIMEOUT": "40",
}


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    with ThreadPoolExecutor() as pool:
        yield pool


class Paused:
    """A request that stands at the gate, and then runs on."""

    def __init__(self, gate: Path, answer: Future[httpx2.Response]) -> None:
        self._gate, self._answer = gate, answer

    def wake(self) -> httpx2.Response:
        self.open_gate()
        return self._answer.result(30)

    def open_gate(self) -> None:
        self._gate.touch()


@pytest.fixture
def pause(product: Product, pool: ThreadPoolExecutor, gate: Path) -> Callable[..., Paused]:
    """Send a request that pauses at a point, and wait until it has claimed its key."""

    def send(kind: str, key: str, point: str) -> Paused:
        answer = pool.submit(product.pay, kind, key, fault=f"pause@{point}={gate}")
        wait_until(lambda: product.rows(_KEY, key))
        return Paused(gate, answer)

    return send


_KEY = "SELECT FROM idempotency_idempotencykey WHERE key = %s"
_WAITING = """
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def wait_for_waiting(product: Product, count: int) -> None:
    """Until so many sessions wait for a lock."""
    wait_until(lambda: len(product.rows(_WAITING)) == count)


def test_case_39_an_owner_that_wakes_after_a_takeover_has_its_work_rolled_back(
    product: Product, pause: Callable[..., Paused]
) -> None:
    key = new_key()
    paused = pause("transfer", key, "claimed")
    second = product.retry(lambda: product.transfer(key))
    assert second.status_code == 201
    first = paused.wake()
    assert (first.status_code, first.json()["code"]) == (409, "idempotency_lease_lost")
    assert product.effects(key) == 1
    replay = product.transfer(key)
    assert (replay.content, replay.headers["Idempotent-Replayed"]) == (second.content, "true")


def test_case_39_an_owner_that_wakes_with_its_work_done_gives_way_to_the_new_one(
    product: Product, pause: Callable[..., Paused], pool: ThreadPoolExecutor
) -> None:
    key = new_key()
    # It holds the locks of both accounts, so the new owner cannot go on before it is awake.
    paused = pause("transfer", key, "work")
    new_owner = pool.submit(product.retry, lambda: product.transfer(key))
    wait_for_waiting(product, 1)
    first = paused.wake()
    assert (first.status_code, first.json()["code"]) == (409, "idempotency_lease_lost")
    assert new_owner.result(30).status_code == 201
    assert (product.effects(key), product.key(key)["attempt"]) == (1, 2)


@pytest.mark.parametrize("point", ["work", "prepared", "called"])
def test_case_39_an_owner_of_a_charge_that_wakes_after_a_takeover_charges_no_second_time(
    product: Product, pause: Callable[..., Paused], point: str
) -> None:
    key = new_key()
    paused = pause("charge", key, point)
    second = product.retry(lambda: product.charge(key))
    assert second.status_code == 201
    first = paused.wake()
    assert first.json()["retry"] == "same_key"
    assert (product.charged(key), product.effects(key)) == (1, 1)
    replay = product.charge(key)
    assert (replay.content, replay.headers["Idempotent-Replayed"]) == (second.content, "true")
    product.assert_ledgers_agree()


def test_case_40_a_reclaimer_between_reading_and_writing_overwrites_no_completion(
    product: Product, pause: Callable[..., Paused], pool: ThreadPoolExecutor
) -> None:
    key = new_key()
    paused = pause("transfer", key, "work")
    over = f"{_KEY} AND lease_expires_at < clock_timestamp()"
    wait_until(lambda: product.rows(over, key))
    with product.connect() as connection:
        connection.execute(f"{_KEY} FOR UPDATE", [key])
        # Both queue for the row: the completion, then the job, which has read it as abandoned.
        paused.open_gate()
        wait_for_waiting(product, 1)
        job = pool.submit(product.manage, "idempotency_reclaim_expired_leases")
        wait_for_waiting(product, 2)
    assert paused.wake().status_code == 201
    assert ": 0 done" in job.result(30).stdout
    assert (product.state(key), product.effects(key)) == ("succeeded", 1)
    assert product.events(key) == []


@pytest.mark.parametrize(
    ("outcome", "status"), [("free", 201), ("final", 410)], ids=["free for retry", "final"]
)
def test_case_57_an_owner_that_an_operator_ended_has_its_work_rolled_back(
    product: Product, pause: Callable[..., Paused], outcome: str, status: int
) -> None:
    key = new_key()
    paused = pause("transfer", key, "work")
    force_fail(product, key, outcome)
    first = paused.wake()
    assert (first.status_code, first.json()["code"]) == (409, "idempotency_lease_lost")
    assert product.effects(key) == 0
    answer = product.transfer(key)
    assert answer.status_code == status
    assert product.effects(key) == (status == 201)
    assert product.events(key) == ["force_failed"]


def force_fail(product: Product, key: str, outcome: str) -> None:
    """End the attempt in the admin, as an operator's browser does."""
    with httpx2.Client(base_url=product.url, trust_env=False, timeout=30) as browser:
        submit(browser, "/admin/login/", username="admin", password="admin", next="/admin/")
        page = f"/admin/idempotency/idempotencykey/force-fail/?key={product.key(key)['id']}"
        submit(browser, page, outcome=outcome, reason="stuck")


def submit(browser: httpx2.Client, page: str, **fields: str) -> None:
    """Fill in the form of a page and send it, with the hidden fields that came with it."""
    form = browser.get(page)
    assert form.status_code == 200
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form.text)
    answer = browser.post(page, data={**{name: html.unescape(it) for name, it in hidden}, **fields})
    assert answer.status_code == 302, answer.text
