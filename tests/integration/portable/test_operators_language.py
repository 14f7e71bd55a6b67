"""An operator reads in his language; what he has stored is in the service's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import translation
from django.utils.translation import gettext

from idempotency import operators
from idempotency.core.decisions import Replay
from idempotency.operations import Done, Reply
from idempotency.operators import Seen
from tests.integration.portable.conformance.harness import Key
from tests.integration.portable.jobs.shipments import Shipment, abandoned

pytestmark = pytest.mark.django_db


def replayed(key: Key) -> dict[str, Any]:
    decision = key.claim()
    assert isinstance(decision, Replay)
    assert decision.response is not None
    document: dict[str, Any] = json.loads(decision.response.body or b"")
    return document


def test_a_key_that_is_ended_in_german_answers_in_english() -> None:
    key = abandoned()
    with translation.override("de"):
        seen = Seen.of(key.row)
        assert operators.force_fail(key.row.pk, seen=seen, actor="a", reason="x", final=True)
        assert gettext("Ended by an operator") == "Von einem Operator beendet"
    assert replayed(key)["title"] == "Ended by an operator"


def test_an_operation_that_is_settled_in_german_answers_in_english(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finalize(*_: Any) -> Reply:
        return Reply(201, {"said": gettext("Ended by an operator")})

    monkeypatch.setattr(Shipment, "finalize", finalize)
    key = abandoned()
    seen, outcome = Seen.of(key.row), Done({"id": 1})
    with translation.override("de"):
        assert operators.settle(key.row.pk, seen=seen, outcome=outcome, actor="a", reason="x")
    assert replayed(key) == {"said": "Ended by an operator"}
