"""Two merchants and a simulated gateway.

Imports of the product are inside the fixtures: this file is read before the settings are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugins.gateway import GatewayProcess

if TYPE_CHECKING:
    from tests.integration.payments.api import Api


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The ledger's rules are triggers of PostgreSQL.
    for item in items:
        if "integration/payments" in item.path.as_posix():
            item.add_marker(pytest.mark.postgresql)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up but this machine's: tests do not depend on a network."""
    from payments.webhooks import addresses

    def look_up(host: str, port: int) -> list[str]:
        if host == "localhost":
            return ["127.0.0.1"]
        raise addresses.LookUpFailed(f"{host} is not known to tests")

    monkeypatch.setattr(addresses, "look_up", look_up)


@pytest.fixture(autouse=True)
def nobody_is_nudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants messages delivered runs a dispatcher; no broker hears of them."""
    from idempotency.outbox import nudging

    monkeypatch.setattr(nudging, "_celery", lambda: None)


@pytest.fixture
def acme(db: None) -> Api:
    from tests.integration.payments.api import new_api

    return new_api("Acme")


@pytest.fixture
def globex(db: None) -> Api:
    from tests.integration.payments.api import new_api

    return new_api("Globex")


@pytest.fixture
def initech(db: None) -> Api:
    """Somebody who has nothing to do with it."""
    from tests.integration.payments.api import new_api

    return new_api("Initech")


@pytest.fixture(scope="session")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway") / "ledger.sqlite3")
    gateway.start()
    yield gateway
    gateway.close()


@pytest.fixture
def bank(running_gateway: GatewayProcess, settings: Any) -> GatewayProcess:
    """The gateway that the product under test talks to. Its ledger is shared by all tests."""
    settings.PAYMENTS_GATEWAY = {"URL": running_gateway.url, "TIMEOUT": 5.0, "ATTEMPTS": 3}
    return running_gateway
