# Nothing that imports models above: pytest reads this file before the settings are there.
from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def shipments() -> Iterator[None]:
    """Every outside call answers as usual again."""
    from tests.integration.portable.jobs.shipments import Shipment

    for memory in (Shipment.answers, Shipment.keys, Shipment.found, Shipment.asked):
        memory.clear()
    yield
    Shipment.answers.clear()
    Shipment.found.clear()


@pytest.fixture
def frozen() -> Iterator[None]:
    from tests.integration.portable.conformance.harness import NOW, at

    with at(NOW):
        yield
