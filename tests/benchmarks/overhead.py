"""What the protection costs: one view with one INSERT, bare and protected, interleaved in one run.

Requests go straight into Django's handler, with no middleware, so nothing dilutes the difference.
The database is durable, as in production: every commit of work is flushed.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory, override_settings

from idempotency.core.decisions import Claim, Won
from idempotency.core.keys import Scope
from idempotency.http.requests import build_policy
from idempotency.stores import get_store

Request = Callable[[], int]


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


def measure(kinds: dict[str, Request], rounds: int) -> Ratios:
    """Run one request of each kind in turn, so that a slow moment of the machine hits all alike."""
    times: dict[str, list[int]] = {name: [] for name in kinds}
    for index in range(rounds + rounds // 10):
        for name, request in kinds.items():
            began = time.perf_counter_ns()
            request()
            if index >= rounds // 10:
                times[name].append(time.perf_counter_ns() - began)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    return Ratios(
        bare_ms=p50["bare"] / 1e6,
        fresh=p50["fresh"] / p50["bare"],
        replay=p50["replay"] / p50["bare"],
        busy=p50["busy"] / p50["bare"],
    )


@override_settings(ROOT_URLCONF="tests.integration.portable.urls", MIDDLEWARE=[])
def one_insert(rounds: int) -> Ratios:
    """The view with one INSERT. Bare, it autocommits, as a Django view does by default."""
    handler, factory = WSGIHandler(), RequestFactory()
    handler.load_middleware()
    body = json.dumps({"amount": 1000, "currency": "eur", "description": "one coffee"})

    def post(path: str, expected: int, keys: Iterator[str]) -> Request:
        def request() -> int:
            headers = {"Idempotency-Key": next(keys)}
            http = factory.post(path, body, content_type="application/json", headers=headers)
            status = handler.get_response(http).status_code
            if status != expected:
                raise AssertionError(f"{path} answered {status}, not {expected}")
            return status

        return request

    replayed = uuid.uuid4().hex
    post("/required", 201, iter([replayed]))()
    return measure(
        {
            "bare": post("/unprotected", 201, _new_keys()),
            "fresh": post("/required", 201, _new_keys()),
            "replay": post("/required", 201, _same(replayed)),
            "busy": post("/required", 409, _same(_held("POST /required", factory, body))),
        },
        rounds,
    )


def _new_keys() -> Iterator[str]:
    while True:
        yield str(uuid.uuid4())


def _same(key: str) -> Iterator[str]:
    while True:
        yield key


def _held(route: str, factory: RequestFactory, body: str) -> str:
    """A key whose first request is running, and will be for as long as the benchmark."""
    from idempotency.http.requests import fingerprinter

    policy = build_policy({})
    http = factory.post("/required", body, content_type="application/json")
    claim = Claim(
        scope=Scope(route, "anonymous", uuid.uuid4().hex),
        fingerprint=fingerprinter(http, body.encode(), None, policy)(1),
        fingerprint_version=1,
        owner=uuid.uuid4(),
        lease=timedelta(hours=1),
    )
    assert isinstance(get_store().claim(claim), Won)
    return claim.scope.key
