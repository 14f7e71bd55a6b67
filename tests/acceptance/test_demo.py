"""`make demo`, against a product with Celery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config import embedded
from tests.acceptance.product import ROOT, Product

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product], valkey: embedded.Valkey) -> Iterator[Product]:
    product = make_product(
        IDEMPOTENCY_LEASE="4", IDEMPOTENCY_BEAT="1", REDIS_URL=valkey.url
    ).start()
    with product.celery():
        yield product


def tell(folder: Path, product: Product | None = None) -> subprocess.CompletedProcess[str]:
    """Run the demo against the product, as it would find the stack."""
    if product is not None:
        merchants = [
            {"name": name.title(), "account": account, "api_key": f"sk_test_{name}"}
            for name, account in product.accounts.items()
        ]
        stack = {"url": product.url, "gateway": product.gateway.url, "merchants": merchants}
        (folder / "stack.json").write_text(json.dumps(stack))
    command = [sys.executable, "-m", "config.demo"]
    env = os.environ | {"STACK_DATA": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_every_line_of_the_demo_is_as_it_should_be(product: Product, tmp_path: Path) -> None:
    told = tell(tmp_path, product)
    assert told.returncode == 0, told.stdout + told.stderr
    lines = told.stdout.splitlines()
    assert [line for line in lines if line.startswith("NO")] == []
    assert 20 <= sum(line.startswith("ok") for line in lines) <= 28
    assert all(len(line) <= 100 for line in lines)
    # What it tells of the gateway is true, and our ledger says the same.
    taken = sum(entry["amount"] for entry in product.gateway.ledger())
    assert taken == 1999 + 500 + 700 + 900 + 1200 + 800
    product.assert_ledgers_agree()


def test_the_demo_tells_of_a_gateway_that_charges_twice(product: Product, tmp_path: Path) -> None:
    product.gateway.control(dedupe=False)
    try:
        told = tell(tmp_path, product)
    finally:
        product.gateway.control(dedupe=True)
    assert told.returncode == 1
    (wrong,) = [line for line in told.stdout.splitlines() if line.startswith("NO")]
    assert "gateway's ledger" in wrong
    assert "(expected: nothing new)" in wrong


def test_the_demo_without_a_stack_says_what_to_do(tmp_path: Path) -> None:
    told = tell(tmp_path)
    assert told.returncode == 1
    assert "make run" in told.stdout
    assert told.stderr == ""
