"""What a client meets on the way, and what its retry gets."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from tests.acceptance.product import HOST, Product, new_key, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

PRODUCT = {"GATEWAY_TIMEOUT": "0.5"}


@pytest.fixture(autouse=True)
def _closed_breaker() -> None:
    """What one test's gateway did must not keep the next test's charges from it."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        for key in client.scan_iter("idempotency:client:*"):
            client.delete(key)


def post_and_hang_up(product: Product, path: str, body: dict[str, object], **headers: str) -> None:
    """Send a whole request and close the connection before any answer."""
    content = json.dumps(body).encode()
    headers = {
        "Host": HOST,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    port = int(product.url.rpartition(":")[2])
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)


@pytest.mark.parametrize("point", ["claimed", "called"])
def test_case_13_a_client_that_hangs_up_before_the_answer_finds_it_on_the_retry(
    product: Product, gate: Path, point: str
) -> None:
    key = new_key()
    body = {"amount": 1000, "currency": "EUR", "source": "tok_visa", "description": key}
    # The gate keeps the answer back until the client is certainly gone.
    headers = product.headers(key, fault=f"pause@{point}={gate}")
    post_and_hang_up(product, "/v1/charges", body, **headers)
    gate.touch()
    wait_until(lambda: product.rows(_SUCCEEDED, key))
    answer = product.charge(key)
    assert (answer.status_code, answer.headers["Idempotent-Replayed"]) == (201, "true")
    assert (product.charged(key), product.effects(key)) == (1, 1)


_SUCCEEDED = "SELECT FROM idempotency_idempotencykey WHERE key = %s AND state = 'succeeded'"


def test_case_37_after_a_commit_that_failed_the_retry_replays_no_phantom(product: Product) -> None:
    key = new_key()
    assert product.transfer(key, fault="commit").status_code == 500
    assert (product.state(key), product.effects(key)) == ("failed", 0)
    answer = product.transfer(key)
    assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (201, False)
    assert product.effects(key) == 1


def test_case_37_a_charge_whose_last_commit_failed_is_resumed_and_charges_once(
    product: Product,
) -> None:
    key = new_key()
    answer = product.charge(key, fault="commit")
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_pending")
    assert (product.charged(key), product.effects(key)) == (1, 0)
    assert product.charge(key).status_code == 201
    assert (product.charged(key), product.effects(key)) == (1, 1)


def test_case_44_a_gateway_that_times_out_is_asked_again_under_the_same_key(
    product: Product,
) -> None:
    key = new_key()
    product.gateway.control(delay=1.5)
    try:
        answer = product.charge(key)
    finally:
        product.gateway.control(delay=0)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_pending")
    assert int(answer.headers["Retry-After"]) >= 1
    assert product.effects(key) == 0
    # All three attempts charge in the end, as one.
    wait_until(lambda: product.charged(key))
    answer = product.retry(lambda: product.charge(key))
    assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (201, False)
    assert (product.charged(key), product.effects(key)) == (1, 1)
    product.assert_ledgers_agree()


@pytest.mark.parametrize(
    "source", ["tok_answer_lost", "tok_error_before", "tok_error_after", "tok_busy"]
)
def test_a_gateway_that_misbehaves_charges_once(product: Product, source: str) -> None:
    key = new_key()
    answer = product.retry(lambda: product.charge(key, source=source))
    assert answer.status_code == 201
    assert (product.charged(key), product.effects(key)) == (1, 1)
    product.assert_ledgers_agree()


def test_a_gateway_that_is_down_charges_nothing_and_leaves_the_key_usable(
    product: Product,
) -> None:
    key = new_key()
    product.gateway.control(down=True)
    try:
        answer = product.charge(key)
    finally:
        product.gateway.control(down=False)
    assert (answer.status_code, answer.json()["retry"]) == (503, "same_key")
    assert (product.charged(key), product.effects(key)) == (0, 0)
    assert product.charge(key).status_code == 201
    assert (product.charged(key), product.effects(key)) == (1, 1)


def test_case_45_a_decline_is_kept_and_replayed(product: Product) -> None:
    key = new_key()
    first = product.charge(key, source="tok_declined")
    assert (first.status_code, first.json()["code"]) == (402, "card_declined")
    again = product.charge(key, source="tok_declined")
    assert (again.status_code, again.content) == (402, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    # The gateway was asked once: one decline under the key, and nothing in its ledger.
    (charge,) = product.rows("SELECT * FROM payments_charge WHERE description = %s", key)
    assert (charge["status"], charge["public_id"]) == ("declined", first.json()["charge"])
    assert (product.charged(key), product.effects(key)) == (0, 0)


def test_a_fault_that_is_none_is_refused_rather_than_passed_over(product: Product) -> None:
    for fault in ("kill", "kill@nowhere", "pause@work", "kill@work=file", "commit@work"):
        answer = product.transfer(new_key(), fault=fault)
        assert answer.status_code == 400
        assert fault in answer.text


def test_without_demo_faults_the_header_means_nothing(settings: Any) -> None:
    def status() -> int:
        answer = Client().get("/healthz", headers={"X-Demo-Fault": "kill@nowhere"})
        return answer.status_code

    assert not settings.DEMO_FAULTS
    assert status() == 200
    # What the header would have met: this fault is none, and is refused.
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "config.faults.middleware"]
    assert status() == 400
