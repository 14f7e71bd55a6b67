"""A client that speaks for a merchant, and what the tests ask of its answers."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from django.db import connection, connections, transaction
from django.db.models import QuerySet
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

    def start(call: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return _in_thread(call)

    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(60) for future in [threads.submit(start, it) for it in calls]]


def meeting_at(rows: QuerySet[Any], *calls: Callable[[], Any]) -> list[Any]:
    """Run the calls while the rows are locked; once all of them wait for a lock, let them go.

    So whatever each has read before its first lock, all have read it before any of them writes.
    """
    with ThreadPoolExecutor(len(calls)) as threads:
        with transaction.atomic():
            assert list(rows.select_for_update(no_key=True))
            futures = [threads.submit(_in_thread, call) for call in calls]
            _wait_until_waiting(len(calls))
        return [future.result(60) for future in futures]


def _in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    finally:
        connections.close_all()


def _wait_until_waiting(count: int) -> None:
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    deadline = time.monotonic() + 4  # below lock_timeout
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # kept for a transaction otherwise
            cursor.execute(waiting)
            if cursor.fetchone()[0] == count:
                return
    raise AssertionError(f"there are not {count} waiting for a lock")


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The problem document of a response, which must be this one."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["title"]
    assert document["detail"]
    return document
