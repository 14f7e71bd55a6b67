"""Any sequence of what can be asked of a store, against a reference that fits on a page."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from idempotency.stores import get_store
from tests.counts import repeats
from tests.integration.portable.model.machine import StoreMachine

pytestmark = pytest.mark.django_db


def test_every_store_does_what_the_reference_does(each_store: str) -> None:
    machine = type("Machine", (StoreMachine,), {"store": get_store("default")})

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=repeats(3000, 12),
            stateful_step_count=repeats(50, 25),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
