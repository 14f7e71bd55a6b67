"""The product's money routes are under the retry budget, and read the caller's deadline."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from idempotency.models import IdempotencyKey
from idempotency.rest_framework import RetryBudgetThrottle
from tests.integration.payments.api import Api, problem

RETRY = {"X_Retry_Attempt": "2; max=3"}
ROUTES = pytest.mark.parametrize(
    "path", ["/v1/charges", "/v1/transfers", "/v1/charges/ch_1/refunds"]
)


@pytest.fixture
def nothing_left(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No retry is granted."""
    name = f"test-{uuid.uuid4()}"
    monkeypatch.setattr(RetryBudgetThrottle, "budget", name)
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {
        "RETRY_BUDGET_RATIO": 0,
        "RETRY_BUDGET_FLOOR": 0,
        "REDIS_TIMEOUT": 30,  # a loaded machine must not look like a lost Redis
    }
    yield
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as server:
        server.delete(f"idempotency:client:service:{name}")


@ROUTES
@pytest.mark.usefixtures("nothing_left")
def test_a_retry_above_the_budget_is_refused_before_its_key_is_claimed(
    acme: Api, path: str
) -> None:
    refused = acme.post(path, {"amount": 1}, **RETRY)

    document = problem(refused, 503, "retry_budget_exhausted")
    assert document["retry"] == "same_key"
    assert int(refused["Retry-After"]) >= 1
    assert not IdempotencyKey.objects.exists()


@pytest.mark.usefixtures("nothing_left")
def test_a_stored_transfer_is_replayed_above_the_budget(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    first = acme.transfer(globex, 1, key="k")
    body = {"to": globex.merchant.public_id, "amount": 1, "currency": "EUR"}

    for headers, sent in (({}, {}), (RETRY, {}), (RETRY, {"client_token": "k"})):
        again = acme.post("/v1/transfers", body | sent, key="k", **headers)
        assert (again.status_code, again.content) == (201, first.content)
        assert again["Idempotent-Replayed"] == "true"

    assert acme.balance() == 999


@pytest.mark.usefixtures("nothing_left")
def test_an_unknown_caller_hears_401_and_no_budget(acme: Api) -> None:
    acme.secret = "sk_test_nobody"

    assert acme.post("/v1/transfers", {}, **RETRY).status_code == 401


@ROUTES
def test_a_request_that_nobody_waits_for_is_not_begun(acme: Api, path: str) -> None:
    refused = acme.post(path, {"amount": 1}, X_Request_Deadline_Ms="0")

    problem(refused, 504, "deadline_exceeded")
    assert not IdempotencyKey.objects.exists()
