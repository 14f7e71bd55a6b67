"""Requests are timed by route and by how they end."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY
from rest_framework.exceptions import ValidationError

from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import Api, Killed, abandon, end_lease, kill
from tests.integration.portable.elsewhere import elsewhere

pytestmark = pytest.mark.django_db


class Timed:
    """What was timed since it was last asked."""

    def __init__(self) -> None:
        self._before = self._read()

    def since(self) -> list[tuple[str, str]]:
        """In no order that means anything: the registry lists the outcomes as they first came."""
        now = self._read()
        new = [one for one, number in now.items() for _ in range(number - self._before.get(one, 0))]
        self._before = now
        return sorted(new)

    @staticmethod
    def _read() -> dict[tuple[str, str], int]:
        return {
            (sample.labels["route"], sample.labels["outcome"]): int(sample.value)
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == "idempotency_request_seconds_count"
        }


def test_a_request_is_timed_once_by_the_outcome_it_ends_with(api: Api) -> None:
    timed = Timed()
    api.post("/required", {}, "k")
    api.post("/required", {}, "k")
    api.post("/required", {"a": 1}, "k")
    abandon(api, "/required", {}, "k2")
    assert timed.since() == [
        ("POST /required", outcome) for outcome in ("executed", "mismatch", "replayed", "unknown")
    ]
    api.post("/required", {}, "k2")
    end_lease("k2")
    api.post("/required", {}, "k2")
    assert timed.since() == [("POST /required", "executed"), ("POST /required", "in_use")]


def test_work_that_was_rolled_back_is_timed_too(api: Api) -> None:
    timed = Timed()

    def refuse(request: Any) -> Any:
        raise ValidationError("no")

    views.behaviour = refuse
    api.post("/required", {}, "k")
    views.behaviour = lambda request: 1 / 0
    api.post("/required", {}, "k")
    assert timed.since() == [("POST /required", "failed"), ("POST /required", "released")]


def test_an_operation_that_goes_on_without_its_caller_is_pending(api: Api) -> None:
    timed = Timed()
    other_side.reset()
    elsewhere.script = [elsewhere.lost]
    assert api.post("/buy", {}, "k").status_code == 503
    assert timed.since() == [("POST /buy", "pending")]


def test_a_run_that_ends_without_a_word_has_no_outcome_of_the_one_before(api: Api) -> None:
    api.post("/required", {}, "k")
    timed = Timed()
    views.before_work = kill
    with pytest.raises(Killed):
        api.post("/required", {}, "k2")
    assert timed.since() == [("POST /required", "unknown")]
