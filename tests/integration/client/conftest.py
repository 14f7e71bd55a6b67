from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from config import embedded
from idempotency.client.shared import RedisLink
from tests.integration.client.loopback import Server


@pytest.fixture
def url() -> str:
    """The Valkey of the whole run."""
    return os.environ["REDIS_URL"]


@pytest.fixture
def server(url: str) -> Iterator[redis.Redis]:
    """A connection of the test's own."""
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        yield connection


@pytest.fixture
def dependency(server: redis.Redis) -> Iterator[str]:
    """A dependency that no other test has."""
    name = f"test-{uuid.uuid4()}"
    yield name
    server.delete(f"idempotency:client:{name}")


@pytest.fixture
def link(url: str) -> RedisLink:
    # Two cores are enough: a loaded machine must not look like a lost Redis.
    return RedisLink.connect(url, timeout=30)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[embedded.Valkey]:
    """A Valkey that the test may stop."""
    with embedded.Valkey(tmp_path / "valkey", durable=False) as valkey:
        yield valkey


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts HTTP servers, each with a function that answers."""
    with contextlib.ExitStack() as servers:
        yield lambda answer=None: servers.enter_context(Server(answer))
