"""Both halves mean the same headers: what the client half sends, the server half reads."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from idempotency.client import deadline as client_deadline
from idempotency.client import messages
from idempotency.http import attempts, deadlines


@pytest.mark.parametrize(("marker", "retry"), [("1; max=3", False), ("2; max=3", True)])
def test_the_marker_of_the_client_half_is_read_by_the_server_half(marker: str, retry: bool) -> None:
    request = RequestFactory().post("/", headers={messages.MARKER: marker})

    assert attempts.HEADER.lower() == messages.MARKER
    assert attempts.is_marked_retry(request) is retry


def test_the_deadline_of_the_client_half_is_read_by_the_server_half() -> None:
    sent = client_deadline.Deadline.after(1.5, clock=lambda: 0.0).header()
    request = RequestFactory().post("/", headers={client_deadline.HEADER: sent})

    deadline = deadlines.attach(request)

    assert 0 < deadline.remaining() <= 1.5
