"""Callers on connections of their own, one key: what they hear could be heard one by one."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from idempotency.core.decisions import Busy, Claim, Lease, Replay, Won
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey
from idempotency.stores import clock, get_store
from idempotency.stores.base import Store
from tests.counts import repeats
from tests.integration.portable.conformance.harness import LEASE, REQUEST, TTL, together
from tests.integration.portable.model.linearizability import (
    BUSY,
    GAVE_UP,
    LOST,
    OK,
    WON,
    Call,
    is_linearizable,
)

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

CALLERS, CALLS = 4, 7
HOUR = timedelta(hours=1)


class Caller:
    """One thread's calls, chosen by its own generator. It keeps every lease it won, also lost
    ones."""

    def __init__(self, store: Store, scope: Scope, seed: str) -> None:
        self.store, self.scope = store, scope
        self.random = random.Random(seed)
        self.calls: list[Call] = []
        self.leases: list[tuple[int, Lease]] = []

    def run(self) -> list[Call]:
        for _ in range(CALLS):
            asked = self.random.choice(["claim", "claim", "owner", "owner", "end lease"])
            if asked == "end lease":
                self._record(asked, 0, self._end_lease)
            elif asked == "claim" or not self.leases:
                token = self.random.getrandbits(40)
                self._record("claim", token, partial(self._claim, token))
            else:
                self._write(*self.random.choice(self.leases[-2:]))
        return self.calls

    def _record(self, asked: str, by: int, call: Callable[[], str]) -> None:
        began = time.monotonic_ns()
        answered = call()
        self.calls.append(Call(asked, by, answered, began, time.monotonic_ns()))

    def _claim(self, token: int) -> str:
        decision = self.store.claim(Claim(self.scope, REQUEST, 1, uuid.uuid4(), LEASE))
        match decision:
            case Won(lease):
                self.leases.append((token, lease))
                return WON
            case Busy(lease_left):
                return BUSY if lease_left else GAVE_UP
            case Replay(response):
                assert response is not None
                return f"replay {(response.body or b'').decode()}"
        raise AssertionError(decision)

    def _write(self, token: int, lease: Lease) -> None:
        asked = self.random.choice(["complete", "release", "release", "fail", "fail"])
        if asked == "complete":
            answer = RecordedResponse(200, (), str(token).encode())
            complete = partial(self.store.complete, lease, answer, TTL)
            self._record(f"complete {token}", token, partial(self._owner, complete))
        elif asked == "release":
            self._record(asked, token, partial(self._owner, self.store.release, lease))
        else:
            self._record(asked, token, partial(self._owner, self.store.fail, lease, "boom", TTL))

    def _owner(self, write: Callable[..., Any], *arguments: Any) -> str:
        try:
            with transaction.atomic():
                write(*arguments)
        except LeaseLost:
            return LOST
        return OK

    def _end_lease(self) -> str:
        running = IdempotencyKey.objects.filter(digest=self.scope.digest, state="processing")
        running.update(lease_expires_at=clock.now() - HOUR)
        return OK


def test_what_concurrent_callers_hear_could_have_been_heard_one_by_one(each_store: str) -> None:
    store, heard = get_store("default"), Counter[str]()
    for number in range(repeats(1000, 25)):
        scope = Scope("POST /things", "acme", str(number))
        callers = [Caller(store, scope, f"{number}.{who}") for who in range(CALLERS)]
        history = [call for calls in together(*[one.run for one in callers]) for call in calls]
        assert is_linearizable(history), sorted(history, key=lambda call: call.began)
        heard.update(call.answered.split()[0] for call in history)
    # The histories were about something.
    assert min(heard[kind] for kind in (WON, BUSY, OK, LOST, "replay")) > 0, heard
