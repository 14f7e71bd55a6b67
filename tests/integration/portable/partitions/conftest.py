# Nothing that imports models above: pytest reads this file before the settings are there.
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from idempotency.stores.base import Store

POSTGRES = "idempotency.stores.postgres.PostgresStore"
PORTABLE = "idempotency.stores.database.DatabaseStore"


@pytest.fixture(autouse=True)
def days(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever days a test makes or drops, the next one finds the usual ones."""
    from idempotency import partitions
    from tests.integration.portable.partitions.days import USUAL, Step, create, run

    request.getfixturevalue("transactional_db")
    partitions._known.clear()
    partitions._failed_at.clear()
    yield
    partitions._known.clear()
    partitions._failed_at.clear()
    for partition in partitions.list_partitions("default"):
        if partition.day not in USUAL:
            run(f"DROP TABLE {Step(partitions.Action.DROP, partition.parent, partition.day).table}")
    for parent in partitions.PARENTS:
        for day in USUAL:
            create(parent, day)


@pytest.fixture
def store() -> Store:
    implementation: Store = import_string(POSTGRES)("default")
    return implementation


@pytest.fixture(params=[POSTGRES, PORTABLE], ids=["PostgresStore", "DatabaseStore"])
def each_store(request: pytest.FixtureRequest) -> Store:
    implementation: Store = import_string(request.param)("default")
    return implementation
