"""One structured line for each transition of a key."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from idempotency import maintenance, operators
from idempotency.models import IdempotencyKey
from idempotency.operators import Seen
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import Api, abandon, end_lease, key_of
from tests.integration.portable.elsewhere import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "a-secret-of-its-caller"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "idempotency.transitions")
    return caplog


def steps(told: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """What was logged since it was last asked: transition, from and to."""
    lines = [record.__dict__ for record in told.records if hasattr(record, "transition")]
    told.clear()
    return [(line["transition"], line["from"], line["to"]) for line in lines]


def test_each_transition_of_atomic_work_is_one_line(
    api: Api, told: pytest.LogCaptureFixture, each_store: str
) -> None:
    api.post("/required", {}, KEY)
    claimed = ("claimed", "none", "processing")
    completed = ("completed", "processing", "succeeded")
    assert steps(told) == [claimed, completed]
    api.post("/required", {}, KEY)
    assert steps(told) == [("replayed", "succeeded", "succeeded")]
    api.post("/required", {"a": 1}, KEY)
    assert steps(told) == [("rejected", "unchanged", "unchanged")]

    views.behaviour = lambda request: 1 / 0
    api.post("/required", {}, "k-2")
    assert steps(told) == [claimed, ("failed", "processing", "failed")]
    views.reset()
    api.post("/required", {}, "k-2")
    assert steps(told) == [("claimed", "failed", "processing"), completed]

    def refuse(request: Any) -> Any:
        raise ValidationError("no")

    views.behaviour = refuse
    api.post("/required", {}, "k-3")
    assert steps(told) == [claimed, ("released", "processing", "none")]


def test_what_recovers_a_key_is_a_line_too(
    api: Api, told: pytest.LogCaptureFixture, each_store: str
) -> None:
    for key in ("k-1", "k-2", "k-3"):
        abandon(api, "/required", {}, key)
    end_lease("k-1")
    told.clear()
    api.post("/required", {}, "k-1")
    assert steps(told)[0] == ("taken over", "processing", "processing")
    end_lease("k-2")
    maintenance.reclaim_expired_leases()
    assert steps(told) == [("reclaimed", "processing", "failed")]
    seen = Seen.of(key_of("k-3"))
    operators.force_fail(key_of("k-3").pk, seen=seen, actor="ops", reason="r", final=True)
    assert steps(told) == [("force-failed", "processing", "succeeded")]


def test_an_operation_tells_how_its_call_ended(
    api: Api, told: pytest.LogCaptureFixture, each_store: str
) -> None:
    other_side.reset()
    elsewhere.script = [elsewhere.lost]
    api.post("/buy", {}, "k-1")
    assert steps(told)[1] == ("suspended", "processing", "processing")
    maintenance.resume_operations()
    resumed = [("taken over", "processing", "processing"), ("completed", "processing", "succeeded")]
    assert steps(told) == resumed
    elsewhere.script = [elsewhere.lost]
    api.post("/buy-once", {}, "k-2")
    assert steps(told)[1] == ("in doubt", "processing", "in_doubt")
    doubtful = key_of("k-2")
    done = operators.Done({"id": "e1"})
    operators.settle(
        doubtful.pk, seen=Seen.of(doubtful), outcome=done, actor="ops", reason="seen there"
    )
    assert steps(told) == [("completed", "in_doubt", "succeeded")]


def test_a_line_says_whose_transition_it_was(api: Api, told: pytest.LogCaptureFixture) -> None:
    api.send("POST", "/required", {}, KEY, X_Request_ID="from-the-shop-7")
    claimed, completed = (
        record.__dict__ for record in told.records if "transition" in vars(record)
    )
    key = IdempotencyKey.objects.get()
    assert (
        claimed.items()
        >= {
            "key": bytes(key.digest).hex()[:12],
            "route": "POST /required",
            "tenant": "anonymous",
            "owner": str(key.owner),
            "attempt": 1,
            "request_id": "from-the-shop-7",
        }.items()
    )
    assert completed["status"] == 201
    assert claimed["levelname"] == "INFO"


def test_no_line_holds_the_key(api: Api, told: pytest.LogCaptureFixture) -> None:
    for body in ({}, {}, {"a": 1}):
        api.post("/required", body, KEY)
    assert told.records
    for record in told.records:
        assert KEY not in repr(record.__dict__) + record.getMessage()


def test_a_request_id_is_answered_and_a_bad_one_replaced(api: Api) -> None:
    answer = api.send("POST", "/required", {}, KEY, X_Request_ID="from-the-shop-7")
    assert answer["X-Request-ID"] == "from-the-shop-7"
    for bad in ("a b", KEY, f"id-{KEY}"):
        replaced = api.send("POST", "/required", {}, KEY, X_Request_ID=bad)["X-Request-ID"]
        assert len(replaced) == 32
        assert KEY not in replaced
