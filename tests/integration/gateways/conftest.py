"""The adapter and the peers it is set against; each is closed after its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.gateways.adapter import Client
from tests.integration.gateways.peers import (
    Act,
    Counter,
    Script,
)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def connect(url: str, **options: Any) -> Client:
        clients.append(Client(url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.adapter.close()


@pytest.fixture
def play() -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def play(*acts: Act) -> Script:
        scripts.append(Script(*acts))
        return scripts[-1]

    yield play
    for script in scripts:
        script.close()


@pytest.fixture
def counter() -> Iterator[Counter]:
    server = Counter()
    yield server
    server.close()
