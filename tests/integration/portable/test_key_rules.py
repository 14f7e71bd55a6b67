"""What the table itself refuses, whoever writes it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError

from idempotency.models import IdempotencyKey

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def keys() -> Any:
    IdempotencyKey.objects.create(
        digest=bytes(32),
        fingerprint=bytes(32),
        fingerprint_version=1,
        owner=uuid.uuid4(),
        state="processing",
        lease_expires_at=NOW,
        created_at=NOW,
        response_day=NOW.date(),
    )
    return IdempotencyKey.objects.all()


@pytest.mark.parametrize(
    ("state", "lease", "expires"),
    [
        ("processing", NOW, None),
        ("processing", NOW, NOW),
        ("in_doubt", None, None),
        ("succeeded", None, NOW),
        ("failed", None, NOW),
    ],
)
def test_a_state_with_what_it_needs_is_kept(
    keys: Any, state: str, lease: datetime | None, expires: datetime | None
) -> None:
    assert keys.update(state=state, lease_expires_at=lease, expires_at=expires) == 1


@pytest.mark.parametrize(
    ("state", "lease", "expires"),
    [
        ("gone", None, NOW),
        ("gone", NOW, NOW),
        ("processing", None, None),
        ("in_doubt", NOW, None),
        ("succeeded", NOW, NOW),
        ("succeeded", None, None),
        ("failed", NOW, NOW),
        ("failed", None, None),
    ],
)
def test_a_state_without_what_it_needs_is_refused(
    keys: Any, state: str, lease: datetime | None, expires: datetime | None
) -> None:
    with pytest.raises(IntegrityError, match="idempotency_key_state"):
        keys.update(state=state, lease_expires_at=lease, expires_at=expires)
