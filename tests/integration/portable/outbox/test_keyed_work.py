"""What a protected view sends: once for its key, and only with its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from rest_framework.response import Response

from idempotency import outbox
from idempotency.models import OutboxMessage
from idempotency.outbox import nudging
from tests.integration.portable import views
from tests.integration.portable.api import Api, Killed, end_lease
from tests.integration.portable.outbox.mail import Mail, dispatch
from tests.integration.portable.test_failures import BOTH_ADAPTERS, break_a_deferred_constraint

pytestmark = pytest.mark.django_db(transaction=True)


def send_and(end: Callable[[], Any]) -> Callable[[Any], Any]:
    def behaviour(request: Any) -> Any:
        outbox.send("mail", {"name": "receipt"}, aggregate="order 1")
        return end()

    return behaviour


def fail() -> None:
    raise RuntimeError("a defect")


@BOTH_ADAPTERS
def test_case_46_messages_are_sent_once_in_three_tries_and_none_for_work_that_rolled_back(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudged: list[Any] = []
    monkeypatch.setattr(nudging, "nudge", nudged.append)
    for end in (
        fail,
        lambda: Response(status=503),
        lambda: break_a_deferred_constraint(None),
        lambda: Response(status=429),
    ):
        views.behaviour = send_and(end)
        assert api.post(path, {}, "k").status_code >= 400
    assert (OutboxMessage.objects.count(), Group.objects.count(), nudged) == (0, 0, [])

    views.behaviour = send_and(lambda: Response({}, status=201))
    for _ in range(3):
        assert api.post(path, {}, "k").status_code == 201
    dispatch()
    dispatch()
    assert Mail.names() == ["receipt"]
    assert nudged == ["default"]


def test_case_46_a_worker_that_was_killed_after_it_wrote_a_message_sent_none(api: Api) -> None:
    def die() -> None:
        raise Killed

    views.behaviour = send_and(die)
    with pytest.raises(Killed):
        api.post("/things", {}, "k")
    dispatch()
    assert Mail.names() == []

    end_lease("k")
    views.behaviour = send_and(lambda: Response({}, status=201))
    assert api.post("/things", {}, "k").status_code == 201
    dispatch()
    assert Mail.names() == ["receipt"]
