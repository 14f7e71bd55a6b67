# Nothing that imports models above: pytest reads this file before the settings are there.
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from idempotency.stores.base import Store
    from tests.integration.portable.conformance.harness import Key


@pytest.fixture(
    params=[
        pytest.param(
            "idempotency.stores.postgres.PostgresStore",
            id="PostgresStore",
            marks=pytest.mark.postgresql,
        ),
        pytest.param("idempotency.stores.database.DatabaseStore", id="DatabaseStore"),
    ]
)
def store(request: pytest.FixtureRequest) -> Store:
    """Every implementation; on SQLite the portable one. Tests choose db or transactional_db."""
    implementation: Store = import_string(request.param)("default")
    return implementation


@pytest.fixture
def key(store: Store) -> Key:
    from tests.integration.portable.conformance.harness import Key

    return Key(store)


@pytest.fixture
def frozen() -> Iterator[None]:
    """The clock of every store stands at the harness's NOW."""
    from idempotency.stores import clock
    from tests.integration.portable.conformance.harness import NOW

    clock.freeze(NOW)
    yield
    clock.freeze(None)
