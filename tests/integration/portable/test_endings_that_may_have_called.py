"""What may have had an effect elsewhere is not forgotten, and nobody is told to ask anew."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response

from idempotency import operators
from idempotency.core.decisions import Claim, Won
from idempotency.core.keys import Scope
from idempotency.execution import Execution
from idempotency.http.requests import build_policy
from idempotency.models import IdempotencyKey, StoredResponse
from idempotency.stores import get_store
from tests.integration.portable import views
from tests.integration.portable.api import Api, assert_problem, key_of
from tests.integration.portable.conformance.harness import Key
from tests.integration.portable.jobs.shipments import abandoned


@pytest.mark.django_db(transaction=True)
def test_work_that_asked_for_a_downstream_key_keeps_it_though_the_caller_was_wrong(
    api: Api, each_store: str
) -> None:
    asked: list[str] = []

    def call_then_refuse(request: Any) -> Any:
        asked.append(request.idempotency.downstream_key("charge"))
        if len(asked) == 1:
            raise ValidationError("no")
        return Response({}, status=201)

    views.behaviour = call_then_refuse

    assert api.post("/required", {"a": 1}, "k").status_code == 400
    assert key_of("k").state == "failed"
    assert_problem(api.post("/required", {"a": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post("/required", {"a": 1}, "k").status_code == 201
    assert len(set(asked)) == 1


@pytest.mark.django_db(transaction=True)
def test_an_attempt_that_did_not_call_keeps_what_one_before_it_may_have_called(
    api: Api, each_store: str
) -> None:
    """The second would release the key, and the third would call under another one."""
    asked: list[str] = []

    def first(request: Any) -> Any:
        asked.append(request.idempotency.downstream_key("charge"))
        raise TimeoutError("the answer is lost")

    def second(request: Any) -> Any:
        raise ValidationError("no")

    def third(request: Any) -> Any:
        asked.append(request.idempotency.downstream_key("charge"))
        return Response({}, status=201)

    for behaviour, status in ((first, 500), (second, 400), (third, 201)):
        views.behaviour = behaviour
        assert api.post("/required", {"a": 1}, "k").status_code == status
    assert len(set(asked)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_renamed_parameter_calls_under_the_key_of_before(each_store: str) -> None:
    """Between the two attempts somebody deployed ``{id}`` in the place of ``{charge_id}``."""
    asked = []
    for name in ("charge_id", "id"):
        store = get_store()
        scope = Scope(f"POST /charges/{{{name}}}/refunds", "acct_1", "k")
        won = store.claim(Claim(scope, bytes(32), 1, uuid.uuid4(), timedelta(seconds=30)))
        assert isinstance(won, Won)
        asked.append(Execution(store, won.lease, build_policy({})).downstream_key("refund"))
        store.fail(won.lease, "no answer", timedelta(days=1))
    assert won.lease.attempt == 2
    assert len(set(asked)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_database_that_rolls_the_work_back_does_not_undo_what_was_called(
    api: Api, each_store: str
) -> None:
    def call_then_deadlock(request: Any) -> Any:
        request.idempotency.downstream_key("charge")
        raise OperationalError("deadlock detected")

    views.behaviour = call_then_deadlock
    assert_problem(api.post("/required", {"a": 1}, "k"), 503, "outcome_pending", "same_key")


def end(key: Key) -> dict[str, Any]:
    """An operator ends the key for good; returns what every retry hears."""
    row = key.row
    seen = operators.Seen.of(row)
    assert operators.force_fail(row.pk, seen=seen, actor="ann", reason="stuck", final=True)
    problem: dict[str, Any] = json.loads(bytes(StoredResponse.objects.get(key_id=row.pk).body))
    return problem


@pytest.mark.django_db(transaction=True)
def test_an_operation_that_is_ended_for_good_invites_nobody_to_a_new_key() -> None:
    key = abandoned()

    assert end(key)["retry"] == "never"


@pytest.mark.django_db(transaction=True)
def test_the_answer_of_an_operator_stands_as_long_as_the_views_own_would() -> None:
    key = abandoned()
    row = key.row
    assert row.context is not None
    week = timedelta(days=7)
    IdempotencyKey.objects.update(context=row.context | {"ttl": week.total_seconds()})

    end(key)

    ended = key.row
    assert ended.expires_at - ended.completed_at == week
