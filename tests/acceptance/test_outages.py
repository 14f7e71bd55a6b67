"""Valkey or PostgreSQL goes away while the product runs, and comes back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from config import embedded
from tests.acceptance.product import Product, children, new_key, seed, together, wait_until
from tests.plugins.gateway import GatewayProcess
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

AT_ONCE = 12


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product], valkey: embedded.Valkey) -> Product:
    return make_product(REDIS_URL=valkey.url).start()


@pytest.fixture
def stopped(valkey: embedded.Valkey) -> Iterator[embedded.Valkey]:
    valkey.stop()
    yield valkey
    if valkey.process is None:
        valkey.start()


def race(product: Product, key: str) -> None:
    """Many identical charges at once: one of them charges and every other gets its answer."""
    answers = together(AT_ONCE, lambda _: product.retry(lambda: product.charge(key)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert (product.charged(key), product.effects(key)) == (1, 1)


def test_case_47_without_valkey_charges_are_slower_and_never_wrong(
    product: Product, stopped: embedded.Valkey
) -> None:
    for _ in range(3):
        race(product, new_key())
    assert product.transfer(new_key()).status_code == 201
    product.assert_ledgers_agree()


def test_case_47_a_valkey_that_goes_and_comes_back_under_a_waiting_duplicate_changes_nothing(
    product: Product, valkey: embedded.Valkey, gate: Path
) -> None:
    key = new_key()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(product.charge, key, fault=f"pause@called={gate}")
        wait_until(lambda: product.charged(key))
        # A worker that missed Valkey a moment ago leaves it alone for a while: ask again till then.
        waiting = [pool.submit(product.retry, lambda: product.charge(key)) for _ in range(4)]
        with redis.Redis.from_url(valkey.url) as client:
            wait_until(lambda: client.pubsub_channels("idempotency:wake:*"))
        valkey.kill()
        gate.touch()
        assert first.result(30).status_code == 201
        valkey.start()
        answers = [duplicate.result(30) for duplicate in waiting]
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.content for answer in answers} == {first.result().content}
    assert (product.charged(key), product.effects(key)) == (1, 1)


def test_case_47_a_valkey_that_hangs_makes_charges_slower_and_never_wrong(
    product: Product, valkey: embedded.Valkey
) -> None:
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            race(product, new_key())
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    product.assert_ledgers_agree()


def test_case_47_a_valkey_that_is_flushed_changes_nothing(
    product: Product, valkey: embedded.Valkey
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        key = new_key()
        first = product.charge(key)
        client.flushall()
        again = product.charge(key)
        assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
        for _ in range(3):
            client.flushall()
            race(product, new_key())
    product.assert_ledgers_agree()


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Postgres]:
    """A PostgreSQL of the module's own, which may be stopped and crashed."""
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(0o755)  # PostgreSQL 15, run as nobody, walks it
    with embedded.Postgres(folder / "data") as server:
        yield server


@pytest.fixture(scope="module")
def cut_off(
    postgres: embedded.Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """A product on that server."""
    folder = tmp_path_factory.mktemp("cut_off")
    made = seed(postgres.url, folder)
    gateway = GatewayProcess(folder / "gateway.sqlite3")
    gateway.start()
    product = Product(folder, made.url, made.accounts, gateway, IDEMPOTENCY_LEASE="4")
    try:
        yield product.start()
    finally:
        product.stop()
        gateway.close()


@pytest.mark.parametrize("kind", ["charge", "transfer"])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_case_48_without_a_database_the_answer_is_503_within_a_second_and_nothing_runs(
    cut_off: Product, postgres: embedded.Postgres, measured: Measure, way: str, kind: str
) -> None:
    before, key = cut_off.pay(kind, new_key()), new_key()
    assert before.status_code == 201
    ledger = cut_off.gateway.ledger()
    getattr(postgres, way)()
    try:
        # Also on the connections that the workers had: there are several, and each has to notice.
        answers = [cut_off.pay(kind, key, timeout=1.0) for _ in range(6)]
    finally:
        postgres.start()
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["code"] == "idempotency_unavailable"
        assert answer.json()["retry"] == "same_key"
        assert int(answer.headers["Retry-After"]) >= 1
    assert cut_off.gateway.ledger() == ledger
    assert cut_off.rows("SELECT FROM idempotency_idempotencykey WHERE key = %s", key) == []
    longest = max(answer.elapsed.total_seconds() for answer in answers)
    measured(f"database gone ({way}), longest 503 to a {kind}", f"{longest:.3f} s")

    # It is back: the same key works, and what was acknowledged before is there.
    assert cut_off.retry(lambda: cut_off.pay(kind, key)).status_code == 201
    assert cut_off.effects(key) == 1
    cut_off.assert_ledgers_agree()


def test_case_48_what_a_database_that_crashed_had_acknowledged_is_replayed(
    cut_off: Product, postgres: embedded.Postgres
) -> None:
    key = new_key()
    first = cut_off.transfer(key)
    assert first.status_code == 201
    postgres.kill()
    postgres.start()
    again = cut_off.retry(lambda: cut_off.transfer(key))
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert cut_off.effects(key) == 1


@pytest.mark.parametrize(("kind", "point"), [("transfer", "work"), ("charge", "called")])
def test_case_48_a_database_that_goes_in_the_middle_of_a_request_leaves_one_effect(
    cut_off: Product, postgres: embedded.Postgres, gate: Path, kind: str, point: str
) -> None:
    key = new_key()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cut_off.pay, kind, key, fault=f"pause@{point}={gate}")
        wait_until(lambda: cut_off.rows(_CLAIMED, key))
        if point == "called":
            wait_until(lambda: cut_off.charged(key))
        postgres.stop()
        try:
            gate.touch()
            interrupted = answer.result(30)
        finally:
            postgres.start()
    assert (interrupted.status_code, interrupted.json()["retry"]) == (503, "same_key")
    assert cut_off.effects(key) == 0
    assert cut_off.retry(lambda: cut_off.pay(kind, key)).status_code == 201
    assert cut_off.effects(key) == 1
    cut_off.assert_ledgers_agree()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_database_that_hangs_makes_a_process_unready_and_not_silent(
    cut_off: Product, postgres: embedded.Postgres, measured: Measure
) -> None:
    """Its processes are stopped, so that connections are accepted and nobody ever answers."""
    assert postgres.process is not None
    cut_off.transfer(new_key())
    os.kill(postgres.process.pid, signal.SIGSTOP)  # first: from here on it has no new children
    hanging = [postgres.process.pid, *children(postgres.process.pid)]
    try:
        for pid in hanging:
            os.kill(pid, signal.SIGSTOP)
        ready = [cut_off.get("/readyz", timeout=10.0) for _ in range(4)]
        alive, metrics = cut_off.get("/healthz"), cut_off.get("/metrics", timeout=10.0)
    finally:
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
    assert {answer.status_code for answer in ready} == {503}
    assert {answer.json()["checks"]["database"] for answer in ready} == {"no answer"}
    assert alive.status_code == 200
    assert "idempotency_database_answers 0.0" in metrics.text
    assert "idempotency_requests_total" in metrics.text
    longest = max(answer.elapsed.total_seconds() for answer in ready)
    measured("database hangs, longest /readyz", f"{longest:.3f} s")
    wait_until(lambda: cut_off.get("/readyz").status_code == 200)


_CLAIMED = "SELECT FROM idempotency_idempotencykey WHERE key = %s"
