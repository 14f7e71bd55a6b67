"""What can be kept as an answer."""

from __future__ import annotations

import pytest

from idempotency.core.responses import RecordedResponse


@pytest.mark.parametrize("status", [-1, 0, 99, 600, 70_000])
def test_a_status_that_could_not_be_sent_again_is_refused(status: int) -> None:
    with pytest.raises(ValueError, match=f"100 to 599, not {status}"):
        RecordedResponse(status, (), b"")


@pytest.mark.parametrize("status", [100, 599])
def test_every_status_of_http_is_taken(status: int) -> None:
    assert RecordedResponse(status, (), b"").status == status
