"""The adapter and the peers it is set against; each is closed after its test.

The product is imported inside the fixtures: this file is read before the settings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateways.peers import (
    Act,
    Counter,
    Script,
)
from tests.integration.gateways.stripe.servers import Localstripe

if TYPE_CHECKING:
    from tests.integration.gateways.adapter import Client


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    from tests.integration.gateways.adapter import Client

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


@pytest.fixture(scope="session")
def running_localstripe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Localstripe]:
    server = Localstripe(tmp_path_factory.mktemp("localstripe"))
    yield server
    server.close()


@pytest.fixture
def localstripe(running_localstripe: Localstripe) -> Localstripe:
    """Stripe as localstripe has it: it ignores keys. Its books are empty."""
    running_localstripe.forget()
    return running_localstripe


@pytest.fixture
def counter() -> Iterator[Counter]:
    server = Counter()
    yield server
    server.close()
