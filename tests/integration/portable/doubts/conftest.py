# Nothing that imports models above: pytest reads this file before the settings are there.
from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def payouts() -> Iterator[None]:
    """The bank says nothing of anything."""
    from tests.integration.portable.jobs.shipments import Shipment

    for memory in (Shipment.answers, Shipment.keys, Shipment.found, Shipment.asked):
        memory.clear()
    yield
    Shipment.answers.clear()
    Shipment.found.clear()
