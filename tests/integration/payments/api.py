"""A client that speaks for a merchant, and what the tests ask of its answers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.test import Client

from payments import ledger, merchants
from payments.models import LedgerAccount, LedgerTransaction, Merchant


@dataclass
class Api:
    """A client with a merchant's API key. Bodies are JSON unless `content_type` says otherwise."""

    merchant: Merchant
    secret: str

    def get(self, path: str, **headers: str) -> Any:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex, **headers}
        return self.request("POST", path, body, headers=headers)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Any:
        data = body if isinstance(body, bytes | str) else json.dumps(body)
        sent = {"Authorization": f"Bearer {self.secret}"}
        sent |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        return Client(raise_request_exception=False).generic(
            method, path, "" if body is None else data, content_type, headers=sent
        )

    def charge(self, source: str = "tok_visa", *, key: str | None = None, **body: Any) -> Any:
        body = {"amount": 1000, "currency": "EUR", "source": source, **body}
        return self.post("/v1/charges", body, key=key)

    def refund(self, charge: str, *, key: str | None = None, **body: Any) -> Any:
        return self.post(f"/v1/charges/{charge}/refunds", body, key=key)

    def transfer(self, other: Api, amount: int, *, key: str | None = None, **body: Any) -> Any:
        body = {"to": other.merchant.public_id, "amount": amount, "currency": "EUR", **body}
        return self.post("/v1/transfers", body, key=key)

    def balance(self, currency: str = "EUR") -> int:
        return dict(ledger.balances(merchant=self.merchant)).get(currency, 0)

    def fund(self, amount: int, currency: str = "EUR") -> None:
        """Give the merchant money without a gateway."""
        source = ledger.Place(LedgerAccount.Kind.FUNDING.value, currency)
        own = ledger.merchant_place(merchant_id=self.merchant.pk, currency=currency)
        with transaction.atomic():
            ledger.post(kind=LedgerTransaction.Kind.FUNDING, amounts={source: -amount, own: amount})


def new_api(name: str) -> Api:
    merchant = Merchant.objects.create(name=name)
    _, secret = merchants.issue_api_key(merchant=merchant)
    return Api(merchant, secret)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together; their results, in the order of the calls."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            barrier.wait(30)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(60) for future in [threads.submit(run, it) for it in calls]]


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The problem document of a response, which must be this one."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["title"]
    assert document["detail"]
    return document
