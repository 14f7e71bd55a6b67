"""What is kept of an operation at its recovery point."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from idempotency.http.requests import build_policy
from idempotency.kept import Kept, envelope
from payments.operations import CreateCharge


def test_the_first_call_gets_what_a_resumed_one_would() -> None:
    lease: Any = SimpleNamespace(key_id=1, attempt=1)
    kept = envelope(CreateCharge(), {7: (1, 2)}, build_policy({}), lease)
    assert Kept.read(kept).context == {"7": [1, 2]}
