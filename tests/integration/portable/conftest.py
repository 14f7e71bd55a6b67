"""The suite's views behind their own URLs, and each store there is.

Imports of the product are inside the fixtures: this file is read before the settings are.
"""

from __future__ import annotations

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
