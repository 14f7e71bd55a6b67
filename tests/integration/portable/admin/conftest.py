"""Keys, and people who look at them.

Imports of the product are inside the fixtures: this file may be read before the settings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django.test import Client

    from idempotency.models import IdempotencyKey, KeyEvent


@pytest.fixture
def now(db: None) -> Iterator[datetime]:
    """The present, standing still."""
    from idempotency.testing import freeze_clock

    with freeze_clock(datetime.now(UTC).replace(microsecond=0)) as clock:
        yield clock.now


@pytest.fixture
def make_key(now: datetime) -> Callable[..., IdempotencyKey]:
    from tests.integration.portable.admin.rows import write_key

    return write_key


@pytest.fixture
def make_event(now: datetime) -> Callable[..., KeyEvent]:
    from tests.integration.portable.admin.rows import write_event

    return write_event


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Logs in a new member of the staff with exactly these permissions of the app."""
    from tests.integration.portable.admin import rows

    def log_in(*permissions: str, name: str = "operator") -> Client:
        return rows.logged_in(rows.new_staff(*permissions, name=name))

    return log_in


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    """May see keys and events, and nothing else."""
    return staff("view_idempotencykey", "view_keyevent", name="viewer")


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """May see keys and force-fail them."""
    return staff("view_idempotencykey", "force_fail_idempotencykey")


@pytest.fixture
def root(db: None) -> Client:
    """A superuser: every permission there is."""
    from django.contrib.auth.models import User

    from tests.integration.portable.admin import rows

    return rows.logged_in(User.objects.create_superuser("root"))
