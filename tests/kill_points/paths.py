"""The paths that are cut, how each is recovered from, and what must hold then."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from django.db import connection
from django.test import Client

from idempotency import maintenance
from idempotency.jobs import Result
from idempotency.models import IdempotencyKey
from idempotency.stores import clock
from tests.acceptance.product import Product
from tests.kill_points.points import Points

AMOUNT = 700
TRIES = 4
PATIENCE = 20.0
HOUR = timedelta(hours=1)


@dataclass
class Bench:
    """What a path runs on. Made before the forks: it holds no connection."""

    product: Product
    #: Where Acme's webhooks arrive, in the parent; and what arrived there.
    arrivals: Counter[str] = field(default_factory=Counter)

    def post(self, path: str, key: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": "Bearer sk_test_acme", "Idempotency-Key": key}
        client = Client(raise_request_exception=False)
        data = json.dumps(body)
        return client.generic(
            "POST", path, data, "application/json", headers=headers, SERVER_NAME="localhost"
        )


class Path:
    """One path. Each method runs in a process of its own, and ``facts`` goes from one to the
    next."""

    name: ClassVar[str]

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def arrange(self) -> dict[str, Any]:
        """What has to be there before."""
        return {}

    def act(self, facts: dict[str, Any]) -> None:
        """What is cut."""
        raise NotImplementedError

    def recover(self, facts: dict[str, Any], *, jobs_first: bool) -> None:
        """Go on after the crash, and check what must hold."""
        raise NotImplementedError

    def confirm(self, facts: dict[str, Any]) -> None:
        """What only the parent can check."""


class Request(Path):
    """A client's request for money, retried until it has a final answer."""

    path = "/v1/charges"

    def arrange(self) -> dict[str, Any]:
        key = f"cut-{uuid.uuid4().hex}"
        return {"key": key, "path": self.path, "body": self.body(key)}

    def body(self, key: str) -> dict[str, Any]:
        raise NotImplementedError

    def send(self, facts: dict[str, Any]) -> Any:
        return self.bench.post(facts["path"], facts["key"], facts["body"])

    def act(self, facts: dict[str, Any]) -> None:
        self.send(facts)

    def recover(self, facts: dict[str, Any], *, jobs_first: bool) -> None:
        if jobs_first:
            end_lease(facts["key"])
            run_jobs()
        answer = self._retry(facts)
        again = self.send(facts)
        assert again.headers.get("Idempotent-Replayed") == "true", again.content
        assert (again.status_code, again.content) == (answer.status_code, answer.content)
        end_lease(facts["key"])
        run_jobs()
        [row] = IdempotencyKey.objects.filter(key=facts["key"])
        assert row.state == "succeeded", row.state
        self.check(facts, answer.json())
        self.bench.product.assert_ledgers_agree()

    def _retry(self, facts: dict[str, Any]) -> Any:
        for _ in range(TRIES):
            end_lease(facts["key"])
            answer = self.send(facts)
            if answer.status_code == 201:
                return answer
            said = answer.json()
            assert said.get("retry") == "same_key", said
        raise AssertionError(f"no final answer in {TRIES} tries: {said}")

    def check(self, facts: dict[str, Any], answer: dict[str, Any]) -> None:
        """One effect, and the answer is of it."""
        raise NotImplementedError


class Transfer(Request):
    name = "transfer: claim, work, complete"
    path = "/v1/transfers"

    def body(self, key: str) -> dict[str, Any]:
        to = self.bench.product.accounts["globex"]
        return {"to": to, "amount": 1, "currency": "EUR", "description": key}

    def check(self, facts: dict[str, Any], answer: dict[str, Any]) -> None:
        made = rows("SELECT public_id FROM payments_transfer WHERE description = %s", facts["key"])
        assert made == [(answer["id"],)], made
        assert self.bench.product.effects(facts["key"]) == 1
        assert told("transfer.created", answer["id"]) == 1


class Charge(Request):
    name = "charge: claim, prepare, call, finalize, complete"

    def body(self, key: str) -> dict[str, Any]:
        return {"amount": AMOUNT, "currency": "EUR", "source": "tok_visa", "description": key}

    def check(self, facts: dict[str, Any], answer: dict[str, Any]) -> None:
        query = "SELECT public_id, status FROM payments_charge WHERE description = %s"
        made = rows(query, facts["key"])
        assert made == [(answer["id"], "succeeded")], made
        product = self.bench.product
        assert product.effects(facts["key"]) == product.charged(facts["key"]) == 1
        assert told("charge.succeeded", answer["id"]) == 1


class Refund(Request):
    name = "refund: claim, prepare, call, finalize, complete"

    def arrange(self) -> dict[str, Any]:
        charge = Charge(self.bench)
        answer = charge.send(charge.arrange())
        assert answer.status_code == 201, answer.content
        charged = answer.json()["id"]
        key = f"refund-{uuid.uuid4().hex}"
        path = f"/v1/charges/{charged}/refunds"
        return {"key": key, "path": path, "body": {"amount": AMOUNT}, "charge": charged}

    def check(self, facts: dict[str, Any], answer: dict[str, Any]) -> None:
        made = rows(
            "SELECT r.public_id, r.status, c.amount_refunded FROM payments_refund AS r"
            " JOIN payments_charge AS c ON c.id = r.charge_id WHERE c.public_id = %s",
            facts["charge"],
        )
        assert made == [(answer["id"], "succeeded", AMOUNT)], made
        theirs = self.bench.product.gateway.ledger()
        assert [entry["reference"] for entry in theirs].count(answer["id"]) == 1
        assert told("refund.succeeded", answer["id"]) == 1


# Recovery itself is cut


class AfterCrash(Request):
    """A job that recovers what a crash left is killed too."""

    #: Where the request before it was killed.
    killed_at: ClassVar[str]
    job: ClassVar[Callable[[], Any]]

    def leave_behind(self, facts: dict[str, Any]) -> None:
        """Send the request, and be killed."""
        with Points(label=self.killed_at).watching():
            self.send(facts)

    def act(self, facts: dict[str, Any]) -> None:
        end_lease(facts["key"])
        type(self).job()


class ResumeUncalled(AfterCrash, Charge):
    name = "resume job, the call was not made"
    killed_at = "before POST charges"
    job = staticmethod(maintenance.resume_operations)


class ResumeCalled(AfterCrash, Charge):
    name = "resume job, the call was made"
    killed_at = "after POST charges"
    job = staticmethod(maintenance.resume_operations)


class Reclaim(AfterCrash, Transfer):
    name = "reclaim job"
    killed_at = "before SELECT idempotency_complete_v1"
    job = staticmethod(maintenance.reclaim_expired_leases)


# What the paths ask and do


def end_lease(key: str) -> None:
    """As if the owner had been silent for longer than its lease. The job's pauses are over, too."""
    running = IdempotencyKey.objects.filter(key=key, state="processing")
    running.update(lease_expires_at=clock.now() - HOUR, resumes=0)


def run_jobs() -> None:
    run_alone(maintenance.resume_operations)
    run_alone(maintenance.reclaim_expired_leases)


def run_alone(job: Callable[[], Result]) -> None:
    """Run a job to its end. The server may hold the lock of a killed run for another moment."""
    deadline = time.monotonic() + PATIENCE
    while (result := job()).busy:
        assert time.monotonic() < deadline, f"{result.job}: its lock was never given up"
    assert result.failed == 0, result


def rows(query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def told(kind: str, public_id: str) -> int:
    """How many messages tell Acme's endpoint of it."""
    [(count,)] = rows(
        "SELECT count(*) FROM idempotency_outboxmessage"
        " WHERE payload ->> 'type' = %s AND payload -> 'data' ->> 'id' = %s",
        kind,
        public_id,
    )
    return int(count)
