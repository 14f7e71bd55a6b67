"""Whose key it is, and `GET /v1/idempotency-keys/{key}`: contract cases 56 and 59."""

from __future__ import annotations

import dataclasses
import uuid

from idempotency.models import IdempotencyKey
from payments import merchants
from tests.integration.payments.api import Api
from tests.plugins.gateway import GatewayProcess


def states(api: Api, key: str, query: str = "") -> list[dict[str, object]]:
    response = api.get(f"/v1/idempotency-keys/{key}{query}")
    assert response.status_code == 200
    data: list[dict[str, object]] = response.json()["data"]
    return data


def test_case_56_the_owner_of_a_key_sees_what_became_of_it(acme: Api, bank: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    charge = acme.charge(key=key).json()
    (state,) = states(acme, key)
    assert state.pop("created") < state.pop("expires")  # type: ignore[operator]
    assert state == {
        "key": key,
        "route": "POST /v1/charges",
        "state": "succeeded",
        "attempt": 1,
        "status_code": 201,
        "resource": f"/v1/charges/{charge['id']}",
    }


def test_case_56_a_key_is_shown_for_each_route_it_was_used_on_or_for_one(
    acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    key = uuid.uuid4().hex
    acme.charge(key=key)
    acme.transfer(globex, 10, key=key)
    assert [it["route"] for it in states(acme, key)] == ["POST /v1/transfers", "POST /v1/charges"]
    (one,) = states(acme, key, "?route=POST+/v1/charges")
    assert one["route"] == "POST /v1/charges"
    assert states(acme, key, "?route=POST+/nowhere") == []


def test_case_56_nobody_elses_key_is_shown(acme: Api, globex: Api, bank: GatewayProcess) -> None:
    key = uuid.uuid4().hex
    acme.charge(key=key)
    assert states(globex, key) == []
    assert states(acme, uuid.uuid4().hex) == []


def test_case_59_two_accounts_with_one_key_are_two_requests(
    acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    key = uuid.uuid4().hex
    ours, theirs = acme.charge(key=key), globex.charge(key=key)
    assert (ours.status_code, theirs.status_code) == (201, 201)
    assert ours.json()["id"] != theirs.json()["id"]
    tenants = IdempotencyKey.objects.filter(key=key).values_list("tenant", flat=True)
    assert set(tenants) == {acme.merchant.public_id, globex.merchant.public_id}


def test_case_59_two_credentials_of_one_account_are_one_scope(
    acme: Api, bank: GatewayProcess
) -> None:
    key, secret = uuid.uuid4().hex, f"sk_test_{uuid.uuid4().hex}"
    merchants.issue_api_key(merchant=acme.merchant, secret=secret)
    first = acme.charge(key=key)
    other = dataclasses.replace(acme, secret=secret)
    again = other.charge(key=key)
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert states(other, key) == states(acme, key)
