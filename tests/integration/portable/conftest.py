"""The suite's views behind their own URLs, and each store there is.

Imports of the product are inside the fixtures: this file is read before the settings are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.portable.api import Api

STORES = {
    "functions": "idempotency.stores.postgres.PostgresStore",
    "orm": "idempotency.stores.database.DatabaseStore",
}


@pytest.fixture
def api(db: None, settings: Any) -> Iterator[Api]:
    """A client of the suite's views.

    Inside a transaction of the test's, which is quick; a module whose tests have threads, or look
    at what was committed, marks them ``django_db(transaction=True)``.
    """
    from tests.integration.portable import views
    from tests.integration.portable.api import Api

    settings.ROOT_URLCONF = "tests.integration.portable.urls"
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": "rest_framework.views.exception_handler"}
    views.reset()
    yield Api()
    views.reset()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """TEST_STORES=functions: what runs on both stores runs on the functions only."""
    if os.environ.get("TEST_STORES") != "functions":
        return
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in items]
    orm = [
        item
        for item, of in zip(items, params, strict=True)
        if of.get("each_store") == "orm" or str(of.get("store")).endswith("DatabaseStore")
    ]
    config.hook.pytest_deselected(items=orm)
    items[:] = [item for item in items if item not in set(orm)]


@pytest.fixture(params=[pytest.param("functions", marks=pytest.mark.postgresql), "orm"])
def each_store(request: pytest.FixtureRequest, settings: Any) -> str:
    """Runs the test on the functions in PostgreSQL and on the portable ORM."""
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"STORE": STORES[request.param]}
    name: str = request.param
    return name


@pytest.fixture
def configure(settings: Any) -> Any:
    """Change names in IDEMPOTENCY for one test."""

    def change(**choices: Any) -> None:
        settings.IDEMPOTENCY = settings.IDEMPOTENCY | choices

    return change
