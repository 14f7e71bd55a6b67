"""The gateway's limit in the outage drill is that of the simulation's recovery model."""

from __future__ import annotations

import time

import pytest

from idempotency.client.simulation.recovery import Scenario
from tests.benchmarks.outage_front import Capacity

SECONDS = 1000


@pytest.mark.parametrize("arriving", [8, 12, 20, 33, 34, 96])
def test_turning_requests_away_takes_the_capacity_of_serving_them(arriving: int) -> None:
    capacity, began = Capacity(10), time.monotonic()
    served = sum(capacity.serves(began + number / arriving) for number in range(arriving * SECONDS))
    model = Scenario(capacity=10, slice=1).served(arriving)
    assert served / SECONDS == pytest.approx(model, abs=0.05)
