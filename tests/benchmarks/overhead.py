"""What the protection costs: a view, bare and protected, interleaved in one run.

Requests go straight into Django's handler, through no middleware, so that nothing dilutes the
difference. The database is durable, as in production: every commit of work is flushed.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any

from django.core.handlers.wsgi import WSGIHandler
from django.db import transaction
from django.http import HttpRequest
from django.test import RequestFactory, override_settings

from idempotency.core.decisions import Claim, Won
from idempotency.core.keys import Scope
from idempotency.http.requests import build_policy, fingerprinter
from idempotency.stores import get_store
from payments import ledger, merchants
from payments.models import LedgerAccount, LedgerTransaction, Merchant

Request = Callable[[], None]


@dataclass(frozen=True)
class Ratios:
    """p50 of each kind of request over that of the bare view."""

    bare_ms: float
    fresh: float
    replay: float
    busy: float

    def line(self, name: str) -> str:
        return (
            f"{name:<22} bare p50 {self.bare_ms:6.2f} ms   fresh {self.fresh:4.2f}   "
            f"replay {self.replay:4.2f}   busy {self.busy:4.2f}"
        )


def medians(kinds: dict[str, Request], rounds: int) -> dict[str, float]:
    """Run one request of each kind in turn, so that a slow moment of the machine hits all alike;
    nanoseconds."""
    times: dict[str, list[int]] = {name: [] for name in kinds}
    for index in range(rounds + rounds // 10):
        for name, request in kinds.items():
            began = time.perf_counter_ns()
            request()
            if index >= rounds // 10:
                times[name].append(time.perf_counter_ns() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(kinds: dict[str, Request], rounds: int) -> Ratios:
    p50 = medians(kinds, rounds)
    return Ratios(
        bare_ms=p50["bare"] / 1e6,
        fresh=p50["fresh"] / p50["bare"],
        replay=p50["replay"] / p50["bare"],
        busy=p50["busy"] / p50["bare"],
    )


class _Poster:
    """Sends POSTs of one body, and demands the status that the kind of request should have."""

    def __init__(self, body: dict[str, Any], **headers: str) -> None:
        self._handler = WSGIHandler()
        self._handler.load_middleware()
        self._factory = RequestFactory()
        self._body = json.dumps(body)
        self._headers = headers

    def request(self, path: str, key: str) -> HttpRequest:
        headers = {**self._headers, "Idempotency-Key": key}
        return self._factory.post(
            path, self._body, content_type="application/json", headers=headers
        )

    def post(self, path: str, expected: int, keys: Iterator[str]) -> Request:
        def send() -> None:
            response = self._handler.get_response(self.request(path, next(keys)))
            if response.status_code != expected:
                raise AssertionError(f"{path} answered {response.status_code}, not {expected}")

        return send

    def kinds(self, bare: str, protected: str, tenant: str) -> dict[str, Request]:
        """One request of each kind: with a new key each time, an answered one, a held one."""
        replayed, held = str(uuid.uuid4()), str(uuid.uuid4())
        self.post(protected, 201, repeat(replayed))()
        self._hold(self.request(protected, held), protected, tenant)
        return {
            "bare": self.post(bare, 201, _new_keys()),
            "fresh": self.post(protected, 201, _new_keys()),
            "replay": self.post(protected, 201, repeat(replayed)),
            "busy": self.post(protected, 409, repeat(held)),
        }

    def _hold(self, request: HttpRequest, path: str, tenant: str) -> None:
        """Claim a key as its first request would, and run it for as long as the benchmark."""
        policy = build_policy({"body_field": "client_token"})
        claim = Claim(
            scope=Scope(f"POST {path}", tenant, request.headers["Idempotency-Key"]),
            fingerprint=fingerprinter(request, self._body.encode(), None, policy)(1),
            fingerprint_version=1,
            owner=uuid.uuid4(),
            lease=timedelta(hours=1),
        )
        if not isinstance(get_store().claim(claim), Won):
            raise AssertionError("the key to be held was not free")


def _new_keys() -> Iterator[str]:
    while True:
        yield str(uuid.uuid4())


@override_settings(ROOT_URLCONF="tests.benchmarks.urls", MIDDLEWARE=[])
def one_insert(rounds: int, *, by_hand: bool = False) -> Ratios:
    """A CreateAPIView: a serializer and one INSERT. Bare, it autocommits, as a Django view does by
    default. ``by_hand``: an APIView without a serializer, the least there is to compare with."""
    poster = _Poster({"name": "One Coffee Ltd"})
    paths = ("/bare-lean", "/protected-lean") if by_hand else ("/bare", "/protected")
    return measure(poster.kinds(*paths, "anonymous"), rounds)


@override_settings(ROOT_URLCONF="tests.benchmarks.urls", MIDDLEWARE=[])
def waiting(rounds: int) -> float:
    """The same view with ``busy = "wait"``: a first request that nobody waits for, over bare."""
    poster = _Poster({"name": "One Coffee Ltd"})
    kinds = {
        "bare": poster.post("/bare", 201, _new_keys()),
        "waiting": poster.post("/waiting", 201, _new_keys()),
    }
    p50 = medians(kinds, rounds)
    return p50["waiting"] / p50["bare"]


@override_settings(ROOT_URLCONF="tests.benchmarks.urls", MIDDLEWARE=[])
def transfer(rounds: int) -> Ratios:
    """The product's transfer. Bare, it has a transaction of its own, as it would need one."""
    sender, recipient = (Merchant.objects.create(name=name) for name in ("Sender", "Recipient"))
    _, secret = merchants.issue_api_key(merchant=sender)
    own = ledger.merchant_place(merchant_id=sender.pk, currency="EUR")
    funding = ledger.Place(LedgerAccount.Kind.FUNDING.value, "EUR")
    with transaction.atomic():
        ledger.post(kind=LedgerTransaction.Kind.FUNDING, amounts={funding: -(10**9), own: 10**9})
    poster = _Poster(
        {"to": recipient.public_id, "amount": 1, "currency": "EUR"},
        Authorization=f"Bearer {secret}",
    )
    return measure(poster.kinds("/bare-transfers", "/v1/transfers", sender.public_id), rounds)
