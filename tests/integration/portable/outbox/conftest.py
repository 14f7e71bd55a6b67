# Nothing that imports models above: pytest reads this file before the settings are there.
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from idempotency.testing import FrozenClock


@pytest.fixture(autouse=True)
def mail(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The channel delivers again, its breakers belong to this process, and nobody is nudged."""
    from idempotency.outbox import breakers, nudging
    from tests.integration.portable.outbox.mail import Mail

    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"REDIS_URL": None}
    monkeypatch.setattr(nudging, "nudge", lambda using: None)
    Mail.reset()
    breakers._breaker.cache_clear()
    yield
    Mail.reset()


@pytest.fixture
def clock() -> Iterator[FrozenClock]:
    """The outbox's clock, which stands still until a test moves it."""
    from idempotency.testing import freeze_clock
    from tests.integration.portable.outbox.mail import NOW

    with freeze_clock(NOW) as frozen:
        yield frozen


@pytest.fixture(params=[pytest.param("statement", marks=pytest.mark.postgresql), "orm"])
def each_claim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test on the statement for PostgreSQL and on the portable ORM."""
    from idempotency.outbox import claims

    if request.param == "orm":
        monkeypatch.setattr(claims, "_claim_at_once", claims.claim_portably)
    name: str = request.param
    return name
