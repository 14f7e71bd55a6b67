"""Fixtures that start the product; each module pays for a start once."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from config import embedded
from tests.acceptance.leaks import leaks
from tests.acceptance.pages import FLAGS
from tests.acceptance.product import Product, Seeded, drop, seed
from tests.plugins.gateway import GatewayProcess

# A line for each of thousands of requests would bury what a failed test has to say.
logging.getLogger("httpx2").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    """A database as `make run` leaves it, to be copied."""
    made = seed(os.environ["DATABASE_URL"], tmp_path_factory.mktemp("seeded"))
    yield made
    drop(made.url)


@pytest.fixture(scope="module")
def make_product(
    seeded: Seeded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Product]]:
    """Makes products that have not started, each with a database and a gateway of its own."""
    made: list[Product] = []

    def make(**env: str) -> Product:
        folder = tmp_path_factory.mktemp("product")
        gateway = GatewayProcess(folder / "gateway.sqlite3")
        gateway.start()
        made.append(Product(folder, seeded.copy(), seeded.accounts, gateway, **env))
        return made[-1]

    yield make
    leaked: list[str] = []
    for product in made:
        product.stop()
        leaked += leaks(product)
        product.gateway.close()
        drop(product.database)
    assert leaked == []


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product], request: pytest.FixtureRequest) -> Product:
    """The product of a module; the module's PRODUCT may hold environment variables for it."""
    return make_product(**getattr(request.module, "PRODUCT", {})).start()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for `X-Demo-Fault: pause@…=FILE`: the request goes on once the test touches it."""
    path = tmp_path / "gate"
    yield path
    path.touch()  # nobody waits on after a test that failed


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Valkey]:
    """A Valkey of the module's own, which may be stopped and flushed."""
    with embedded.Valkey(tmp_path_factory.mktemp("valkey") / "data", durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop runs in this thread, which Django takes for asynchronous code.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures of pages go: a temporary folder, or the one that SCREENSHOTS names."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
