"""Charges and refunds while the gateway cannot be asked: refused before anything is written."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from idempotency.client import BulkheadFull
from payments import charges, refunds
from payments.gateways.choice import get_gateway
from payments.gateways.http import HttpGateway
from payments.models import Charge, LedgerTransaction, Refund
from tests.integration.payments.api import Api, problem
from tests.plugins.gateway import GatewayProcess

#: Calls that the breaker must have seen.
MINIMUM = 20


@pytest.fixture(params=["before the claim", "in the work"])
def one_call(
    gateway: GatewayProcess,
    settings: Any,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> GatewayProcess:
    """A gateway that one attempt is made at, one call at a time. That there is no room is noticed
    before the claim; in the work, when the room was taken in between."""
    if request.param == "in the work":
        monkeypatch.setattr(HttpGateway, "obstacle", lambda gateway: None)
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "ATTEMPTS": 1, "CALLS": 1}
    return gateway


def refusal(response: Any) -> int:
    """The seconds that a refused caller is told to wait."""
    document = problem(response, 503, "downstream_unavailable")
    assert document["retry"] == "same_key"
    return int(response["Retry-After"])


def open_breaker(api: Api) -> None:
    for _ in range(MINIMUM):
        refusal(api.charge("tok_down"))


def test_a_charge_beyond_the_room_writes_nothing_and_its_key_is_used_again(
    acme: Api, one_call: GatewayProcess
) -> None:
    key = uuid.uuid4().hex
    with get_gateway().room_for("charge"):
        assert refusal(acme.charge(key=key)) == 1
        assert not Charge.objects.exists()
    assert one_call.ledger() == []
    assert acme.charge(key=key).status_code == 201
    assert len(one_call.ledger()) == 1


def test_a_charge_beyond_the_room_is_refused_for_reads_alone(
    acme: Api, gateway: GatewayProcess, settings: Any
) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "CALLS": 1}
    with get_gateway().room_for("charge"), CaptureQueriesContext(connection) as sent:
        refusal(acme.charge())
    assert {query["sql"].split()[0] for query in sent} == {"SELECT"}


def test_a_refund_beyond_the_room_sets_nothing_aside(acme: Api, one_call: GatewayProcess) -> None:
    charge, key = acme.charge().json()["id"], uuid.uuid4().hex
    posted = LedgerTransaction.objects.count()
    with get_gateway().room_for("refund"):
        assert refusal(acme.refund(charge, key=key)) == 1
    assert not Refund.objects.exists()
    assert LedgerTransaction.objects.count() == posted
    assert (acme.balance(), Charge.objects.get().amount_refunded) == (1000, 0)
    assert acme.refund(charge, key=key).status_code == 201


def test_other_requests_need_no_room(acme: Api, globex: Api, one_call: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    first = acme.charge(key=key)
    with get_gateway().room_for("charge"):
        assert acme.transfer(globex, 10).status_code == 201
        assert acme.get("/v1/charges").status_code == 200
        replay = acme.charge(key=key)
    assert (replay.status_code, replay.content) == (201, first.content)


@pytest.mark.parametrize("refund", [{"amount": 1001}, {}], ids=["refused", "done"])
def test_a_refund_gives_its_room_back_however_it_ends(
    acme: Api, one_call: GatewayProcess, refund: dict[str, int]
) -> None:
    acme.refund(acme.charge().json()["id"], **refund)
    gateway = get_gateway()
    assert isinstance(gateway, HttpGateway)
    assert gateway.room.in_use == 0


def test_a_charge_while_the_breaker_is_open_writes_nothing(
    acme: Api, one_call: GatewayProcess
) -> None:
    charge = acme.charge().json()["id"]
    open_breaker(acme)
    written = Charge.objects.count()
    assert 4 <= refusal(acme.charge()) <= 6
    assert Charge.objects.count() == written
    assert len(one_call.ledger()) == 1
    # Refunds are another operation, and go on.
    assert acme.refund(charge).status_code == 201


def test_an_open_breaker_leaves_an_unknown_charge_unknown(
    acme: Api, one_call: GatewayProcess, settings: Any
) -> None:
    key = uuid.uuid4().hex
    problem(acme.charge("tok_answer_lost", key=key), 503, "outcome_pending")
    open_breaker(acme)
    problem(acme.charge("tok_answer_lost", key=key), 503, "outcome_pending")
    assert Charge.objects.filter(status=Charge.Status.PENDING).count() == 1
    # Another adapter, whose breaker is closed.
    settings.PAYMENTS_GATEWAY = {"URL": one_call.url}
    assert acme.charge("tok_answer_lost", key=key).status_code == 201
    assert len(one_call.ledger()) == 1


def test_a_full_room_leaves_an_unknown_charge_unknown(acme: Api, one_call: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    problem(acme.charge("tok_answer_lost", key=key), 503, "outcome_pending")
    with get_gateway().room_for("charge"):
        with pytest.raises(BulkheadFull), get_gateway().room_for("charge"):
            pass
        problem(acme.charge("tok_answer_lost", key=key), 503, "outcome_pending")
    assert Charge.objects.get().status == Charge.Status.PENDING
    assert acme.charge("tok_answer_lost", key=key).status_code == 201
    assert len(one_call.ledger()) == 1


@pytest.mark.parametrize("code", ["c" * 65, "no\0such"])
def test_a_code_that_no_column_holds_declines_all_the_same(acme: Api, code: str) -> None:
    charge = charges.create_pending(merchant=acme.merchant, amount=1, currency="EUR")
    declined = charges.decline(public_id=charge.public_id, code=code)
    assert declined.decline_code == code.replace("\0", "")[:64]


def test_a_code_that_no_column_holds_fails_a_refund_all_the_same(
    acme: Api, one_call: GatewayProcess
) -> None:
    charge = acme.charge().json()["id"]
    refund = refunds.create_pending(merchant=acme.merchant, charge_id=charge, amount=1)
    assert refunds.fail(public_id=refund.public_id, code="c" * 65).failure_code == "c" * 64
