"""The key of encryption is rotated while a deployment rolls: old and new processes at once."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.fernet import Fernet

from idempotency.encryption import key_of
from tests.acceptance.product import Product, new_key, wait_until
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
CLIENTS, AT_FIRST = 3, 6


class Clients:
    """They repeat at each of the servers what either has answered, and ask for more."""

    def __init__(self, *servers: Product) -> None:
        self.servers = servers
        self.firsts: dict[str, bytes] = {}
        self.replays, self.wrong = itertools.count(), list[str]()
        self.seen = 0
        self.stop = threading.Event()

    def pay(self, server: Product) -> None:
        key = new_key()
        answer = server.transfer(key)
        assert answer.status_code == 201, answer.text
        self.firsts[key] = answer.content

    def repeat(self, server: Product, key: str) -> None:
        answer = server.transfer(key)
        self.seen = next(self.replays)
        if not _is_replay(answer, self.firsts[key]):
            self.wrong.append(f"{answer.status_code} {answer.text}")

    def work(self) -> None:
        for server in itertools.cycle(self.servers):
            if self.stop.is_set():
                return
            self.pay(server)
            keys = list(self.firsts)
            for key in (*keys[:AT_FIRST], *keys[-3:]):
                self.repeat(server, key)


def _is_replay(answer: httpx2.Response, first: bytes) -> bool:
    return answer.headers.get("Idempotent-Replayed") == "true" and answer.content == first


def rotate(product: Product) -> dict[str, Any]:
    done = product.manage("idempotency_rotate_encryption", "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def sealed_by(product: Product) -> set[str | None]:
    """The keys that stored answers are under."""
    found = product.rows("SELECT headers, body FROM idempotency_storedresponse")
    assert not any(bytes(row["body"]).startswith(b"{") for row in found)
    return {key_of(row["headers"]) for row in found}


@pytest.fixture
def behind(make_product: Callable[..., Product]) -> Product:
    """Writes with the old key still, and reads what the new one will have written."""
    return make_product(WEB_WORKERS="1", ENCRYPTION_KEYS=f"{OLD},{NEW}").start()


@pytest.fixture
def ahead(behind: Product, tmp_path: Path) -> Iterator[Product]:
    """The same product, deployed with the new key."""
    env = {"WEB_WORKERS": "1", "ENCRYPTION_KEYS": f"{NEW},{OLD}"}
    product = Product(tmp_path, behind.database, behind.accounts, behind.gateway, **env)
    yield product.start()
    product.stop()


def test_every_replay_answers_while_processes_with_old_and_new_keys_run(
    behind: Product, ahead: Product, measured: Measure
) -> None:
    clients = Clients(behind, ahead)
    for _ in range(AT_FIRST):
        clients.pay(behind)
    (old,) = sealed_by(behind)

    with ThreadPoolExecutor(CLIENTS) as pool:
        working = [pool.submit(clients.work) for _ in range(CLIENTS)]
        try:
            assert rotate(ahead)["done"] >= AT_FIRST
            before = clients.seen
            wait_until(lambda: clients.seen > before + 30 or clients.wrong)
        finally:
            clients.stop.set()
        for one in working:
            one.result()
    assert clients.wrong == []

    # The last of the old processes is gone: what it wrote meanwhile is next, and then its key goes.
    behind.stop()
    assert rotate(ahead)["failed"] == 0
    assert sealed_by(ahead).isdisjoint({old, None})
    for key in clients.firsts:
        clients.repeat(ahead, key)
    assert clients.wrong == []
    measured("key rotated under a rolling deployment: replays, none wrong", str(clients.seen + 1))
