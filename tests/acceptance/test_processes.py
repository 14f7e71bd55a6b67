"""The application is loaded before the workers are forked."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.product import Product, new_key, open_files, together, wait_until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.postgresql,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

AT_ONCE = 30


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product]) -> Product:
    # redis-py takes its timeouts from the URL: 0.1 s of a busy machine would leave tracebacks of
    # their own in the log.
    patient = f"{os.environ['REDIS_URL']}?socket_timeout=10&socket_connect_timeout=10"
    return make_product(IDEMPOTENCY_LEASE="2", REDIS_URL=patient).start("--preload")


def connections(pid: int) -> set[str]:
    """The connected sockets that a process holds, by inode; those it listens on are left out."""
    held = {name.removeprefix("socket:[").removesuffix("]") for name in open_files(pid)}
    return held & _connected()


def _connected() -> set[str]:
    tcp = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {it[9] for it in tcp if it[3] == "01"} | {it[6] for it in unix if it[5] == "03"}


def use_every_worker(product: Product) -> None:
    """Send requests until each worker has connections of its own."""

    def used() -> bool:
        together(AT_ONCE, lambda _: product.charge(new_key()))
        return all(connections(worker) for worker in product.workers())

    wait_until(used)


def assert_nothing_is_shared(product: Product) -> None:
    assert product.web.process is not None
    processes = [product.web.process.pid, *product.workers()]
    assert len(processes) == 3
    for one, other in itertools.combinations(processes, 2):
        assert connections(one) & connections(other) == set()


def test_case_49_workers_forked_from_a_loaded_application_share_no_connection(
    product: Product,
) -> None:
    use_every_worker(product)
    assert_nothing_is_shared(product)


def test_case_49_forked_workers_with_threads_charge_once_and_never_hang(product: Product) -> None:
    for _ in range(3):
        key = new_key()
        answers = together(AT_ONCE, lambda _, key=key: product.charge(key))
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert (product.charged(key), product.effects(key)) == (1, 1)
    answers = together(AT_ONCE, lambda _: product.transfer(new_key()))
    assert {answer.status_code for answer in answers} == {201}
    product.assert_ledgers_agree()
    assert "Traceback" not in product.log()


def test_case_49_a_worker_forked_after_another_was_killed_shares_nothing_either(
    product: Product,
) -> None:
    key, before = new_key(), set(product.workers())
    with pytest.raises(httpx2.TransportError):
        product.charge(key, fault="kill@called")
    wait_until(lambda: len(set(product.workers()) - before) == 1)
    assert product.retry(lambda: product.charge(key)).status_code == 201
    use_every_worker(product)
    assert_nothing_is_shared(product)
    assert (product.charged(key), product.effects(key)) == (1, 1)
