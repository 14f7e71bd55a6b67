"""A charge or refund whose answer is lost, with a gateway that dedupes and with one that does not:
settled from the gateway's books, without a second movement of money."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from idempotency.models import IdempotencyKey
from idempotency.reconciliation import reconcile_operations
from idempotency.testing import assert_replayed
from payments.models import Charge, Refund
from tests.integration.payments.api import Api, problem
from tests.integration.portable.api import key_of
from tests.plugins.gateway import GatewayProcess, until

pytestmark = pytest.mark.django_db


@pytest.fixture
def forgetful(gateway: GatewayProcess, settings: Any) -> GatewayProcess:
    """A gateway that charges again whatever the key, and that we know to do so."""
    gateway.control(dedupe=False)
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "DEDUPES": False}
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"RECONCILE_AFTER": 0}
    return gateway


def test_each_movement_keeps_the_id_of_the_key_that_asked_for_it(
    bank: GatewayProcess, acme: Api, globex: Api
) -> None:
    charge = acme.charge(key="charge").json()
    acme.refund(charge["id"], key="refund", amount=1)
    acme.transfer(globex, 1, key="transfer")

    kept = Charge.objects.get(public_id=charge["id"]).idempotency_key_id
    assert kept == key_of("charge").pk
    assert Refund.objects.get().idempotency_key_id == key_of("refund").pk
    assert acme.merchant.transfers_sent.get().idempotency_key_id == key_of("transfer").pk


def test_another_gateway_is_asked_nothing_about_a_call_that_an_earlier_one_got(
    gateway: GatewayProcess, tmp_path: Path, settings: Any, acme: Api
) -> None:
    """GATEWAY_URL changes while a charge is open. The new one has never heard of its key."""
    settings.PAYMENTS_GATEWAY = earlier = {"URL": gateway.url, "ATTEMPTS": 1}
    problem(acme.charge("tok_answer_lost", key="k"), 503, "outcome_pending")
    other = GatewayProcess(tmp_path / "other.sqlite3")
    other.start()
    try:
        url = other.url.replace("127.0.0.1", "localhost")
        settings.PAYMENTS_GATEWAY = {"URL": url, "ATTEMPTS": 1}
        problem(acme.charge("tok_answer_lost", key="k"), 503, "outcome_pending")
        settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"RECONCILE_AFTER": 0}
        assert reconcile_operations().done == 0
        assert other.ledger() == []
    finally:
        other.close()
    settings.PAYMENTS_GATEWAY = earlier
    assert acme.charge("tok_answer_lost", key="k").status_code == 201
    assert len(gateway.ledger()) == 1


def test_a_lost_answer_is_in_doubt_and_not_called_again(
    forgetful: GatewayProcess, acme: Api
) -> None:
    problem(acme.charge("tok_answer_lost", key="k"), 409, "outcome_in_doubt")
    problem(acme.charge("tok_answer_lost", key="k"), 409, "outcome_in_doubt")

    assert key_of("k").state == "in_doubt"
    assert len(forgetful.ledger()) == 1


def test_the_books_settle_what_is_in_doubt(forgetful: GatewayProcess, acme: Api) -> None:
    acme.charge("tok_answer_lost", key="k")

    assert reconcile_operations().done == 1

    (moved,) = forgetful.ledger()
    charge = Charge.objects.get()
    assert (charge.status, charge.gateway_reference) == ("succeeded", moved["id"])
    assert acme.balance() == 1000
    answer = acme.charge("tok_answer_lost", key="k")
    assert (answer.status_code, answer.json()["id"]) == (201, charge.public_id)
    assert_replayed(answer)


def test_what_the_books_have_as_declined_is_declined(forgetful: GatewayProcess, acme: Api) -> None:
    acme.charge("tok_error_before", key="k")
    assert key_of("k").state == "in_doubt"
    forgetful.charge("tok_declined", reference=Charge.objects.get().public_id)

    assert reconcile_operations().done == 1

    problem(acme.charge("tok_error_before", key="k"), 402, "card_declined")
    assert Charge.objects.get().status == "declined"


def test_what_the_books_never_had_is_withdrawn_in_the_end_and_charged_by_a_retry(
    forgetful: GatewayProcess, acme: Api, settings: Any
) -> None:
    acme.charge("tok_error_before", key="k")
    assert reconcile_operations().done == 0
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"RECONCILE_WITHDRAW_AFTER": 0}
    IdempotencyKey.objects.update(look_up_at=None)

    assert reconcile_operations().done == 1

    assert Charge.objects.get().status == "withdrawn"
    acme.charge("tok_error_before", key="k")
    assert Charge.objects.count() == 2


def test_a_refund_is_settled_from_the_books_as_well(
    forgetful: GatewayProcess, acme: Api, settings: Any
) -> None:
    charge = acme.charge().json()
    forgetful.control(delay=1.0)
    settings.PAYMENTS_GATEWAY = settings.PAYMENTS_GATEWAY | {"TIMEOUT": 0.3}
    problem(acme.refund(charge["id"], key="k"), 409, "outcome_in_doubt")
    assert acme.balance() == 0

    until(lambda: len(forgetful.ledger()) == 2)

    assert reconcile_operations().done == 1
    refund = Refund.objects.get()
    moved = forgetful.ledger()[1]
    assert (refund.status, refund.gateway_reference) == ("succeeded", moved["id"])
    assert acme.refund(charge["id"], key="k").status_code == 201
    assert len(forgetful.ledger()) == 2


def test_past_the_time_that_the_gateway_keeps_keys_a_retry_looks_up_and_does_not_charge(
    gateway: GatewayProcess, acme: Api, settings: Any
) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url, "ATTEMPTS": 1, "DEDUPES_FOR": 24 * 3600}
    problem(acme.charge("tok_answer_lost", key="k"), 503, "outcome_pending")
    # It has forgotten the key by then.
    gateway.control(dedupe=False)
    row = key_of("k")
    row.recovery_point_at -= timedelta(hours=24)
    row.save(update_fields=["recovery_point_at"])

    answer = acme.charge("tok_answer_lost", key="k")

    assert answer.status_code == 201
    assert len(gateway.ledger()) == 1
