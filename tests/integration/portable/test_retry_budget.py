"""The server's own retry budget: what it counts, what it refuses, and what it always serves."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from idempotency import signals
from idempotency.client import BulkheadFull
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.models import IdempotencyKey
from idempotency.rest_framework import RetryBudgetThrottle
from idempotency.retry_budget import ServiceBudget
from idempotency.testing import resume_operations
from tests.integration.portable import budgeted, views
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable.api import (
    Api,
    abandon,
    assert_problem,
    assert_replay,
    end_lease,
    end_ttl,
    key_of,
    keys,
    listening,
    statements,
    together,
)
from tests.integration.portable.elsewhere import bought, elsewhere

pytestmark = pytest.mark.django_db(transaction=True)

RETRY = {"X_Retry_Attempt": "2; max=3"}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def budgeted_views(api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The views that have a throttle, under a budget that no other test has."""
    settings.ROOT_URLCONF = "tests.integration.portable.budgeted"
    other_side.reset()
    name = f"test-{uuid.uuid4()}"
    monkeypatch.setattr(RetryBudgetThrottle, "budget", name)
    yield name
    other_side.reset()
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as server:
        server.delete(f"idempotency:client:service:{name}")


@pytest.fixture(params=["in Valkey", "in the process"])
def allow(request: pytest.FixtureRequest, configure: Any) -> Callable[..., None]:
    """Choose the budget; by default there is none."""
    url = os.environ["REDIS_URL"] if request.param == "in Valkey" else None

    def choose(ratio: float = 0, floor: int = 0, **others: Any) -> None:
        # A loaded machine must not look like a lost Redis.
        given = {"REDIS_URL": url, "REDIS_TIMEOUT": 30} | others
        configure(
            RETRY_BUDGET_RATIO=ratio, RETRY_BUDGET_FLOOR=floor, RETRY_BUDGET_WINDOW=3600, **given
        )

    return choose


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A budget of the process by this clock: one retry for five first attempts, for a minute."""
    clock = Clock()
    local = RetryBudget(BudgetPolicy(ratio=0.2, window=60, floor=0), clock=clock)
    budget = ServiceBudget(local, memory=60, clock=clock)
    monkeypatch.setattr(RetryBudgetThrottle, "get_budget", lambda throttle: budget)
    return clock


def first_attempts(api: Api, count: int) -> None:
    for _ in range(count):
        assert api.post("/things", {}, uuid.uuid4().hex).status_code == 201


def fail(api: Api, key: str, path: str = "/things") -> None:
    """Leave a key FAILED."""

    def broken(request: Any) -> Any:
        raise RuntimeError("the handler failed")

    views.behaviour = broken
    assert api.post(path, {}, key).status_code == 500
    views.behaviour = None
    assert key_of(key).state == "failed"


def row(key: str) -> dict[str, Any]:
    values: dict[str, Any] = IdempotencyKey.objects.filter(key=key).values().get()
    return values


def assert_refused(response: Any) -> None:
    assert_problem(response, 503, "retry_budget_exhausted", retry="same_key")
    assert int(response["Retry-After"]) >= 1


def assert_refused_by_drf(response: Any) -> None:
    assert (response.status_code, response["Content-Type"]) == (403, "application/json")


# The rule


def test_retries_are_a_share_of_first_attempts(api: Api, allow: Any) -> None:
    allow(ratio=0.2)
    first_attempts(api, 10)

    answers = [api.post("/things", {}, f"retry-{number}", **RETRY) for number in range(5)]

    assert [answer.status_code for answer in answers] == [201, 201, 503, 503, 503]
    assert views.effects() == 12


def test_the_floor_is_granted_whatever_the_traffic(api: Api, allow: Any) -> None:
    allow(ratio=0, floor=2)

    answers = [api.post("/things", {}, f"retry-{number}", **RETRY) for number in range(3)]

    assert [answer.status_code for answer in answers] == [201, 201, 503]


def test_after_the_window_there_is_a_new_budget(api: Api, clock: Clock) -> None:
    first_attempts(api, 5)
    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))

    clock.now += 60
    assert_refused(api.post("/things", {}, "b", **RETRY))
    first_attempts(api, 5)

    assert api.post("/things", {}, "b", **RETRY).status_code == 201


def test_only_first_attempts_that_run_are_credited(api: Api, allow: Any) -> None:
    allow(ratio=1)
    assert api.post("/body-field", {}).status_code == 400
    assert api.post("/things", {}, " ").status_code == 400
    assert api.post("/things", b"{", "k").status_code == 400
    assert api.send("GET", "/things", key="k").status_code == 200
    assert api.post("/unprotected", {}, "k").status_code == 201

    assert_refused(api.post("/things", {}, "a", **RETRY))

    first = api.post("/things", {}, "k")
    assert first.status_code == 201
    assert_replay(api.post("/things", {}, "k"), first)
    assert api.post("/things", {"other": 1}, "k").status_code == 422
    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))


def test_the_budget_holds_for_all_processes_with_valkey_and_for_each_without(
    api: Api, allow: Any, request: pytest.FixtureRequest
) -> None:
    shared = "in Valkey" in request.node.name
    allow(floor=1, REDIS_TIMEOUT=30)
    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))

    allow(floor=1, REDIS_TIMEOUT=31)  # another link and another budget, as another process has
    elsewhere_asked = api.post("/things", {}, "b", **RETRY)

    assert elsewhere_asked.status_code == (503 if shared else 201)


def test_a_budget_of_another_name_is_another_budget(
    api: Api, allow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(floor=1)
    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))

    monkeypatch.setattr(RetryBudgetThrottle, "budget", f"test-{uuid.uuid4()}")

    assert api.post("/things", {}, "b", **RETRY).status_code == 201


# What counts as a retry


@pytest.mark.parametrize("marker", ["2", "2; max=3", " 2 ;max=3", "002", "9" * 5000, "2;", "2;a;b"])
def test_a_marked_retry_spends(api: Api, allow: Any, marker: str) -> None:
    allow()

    assert_refused(api.post("/things", {}, "k", X_Retry_Attempt=marker))


@pytest.mark.parametrize(
    "marker",
    [
        "1",
        "1; max=3",
        "0",
        "001",
        "",
        " ",
        "two",
        "-2",
        "+2",
        "2.5",
        "2, 3",
        "0x2",
        "²",
        "2 3",
        ";2",
    ],
)
def test_what_does_not_say_that_it_is_a_retry_is_a_first_attempt(
    api: Api, allow: Any, marker: str
) -> None:
    allow()

    assert api.post("/things", {}, "k", X_Retry_Attempt=marker).status_code == 201


def test_a_safe_method_is_never_refused(api: Api, allow: Any) -> None:
    allow()

    assert api.send("GET", "/things", **RETRY).status_code == 200


def test_a_view_without_keys_is_never_refused(api: Api, allow: Any) -> None:
    allow()

    assert api.post("/unprotected", {}, **RETRY).status_code == 201


def test_a_retry_without_a_key_is_refused_as_well(api: Api, allow: Any) -> None:
    allow(ratio=1)
    assert_refused(api.post("/things", {}, **RETRY))

    assert api.post("/things", {}).status_code == 201

    assert api.post("/things", {}, **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, **RETRY))
    assert views.effects() == 2


# What a refusal leaves


def test_a_refused_retry_of_a_new_key_leaves_no_row(api: Api, allow: Any, each_store: str) -> None:
    allow()

    assert_refused(api.post("/things", {}, "k", **RETRY))

    assert keys() == 0
    assert views.calls == []


@pytest.mark.parametrize("marked", [True, False])
def test_a_refused_re_execution_costs_one_statement_and_leaves_the_row_untouched(
    api: Api, allow: Any, each_store: str, marked: bool
) -> None:
    allow()
    fail(api, "k")
    assert_refused(api.post("/things", {}, "spent", **RETRY))
    before = row("k")

    with statements() as sent:
        refused = api.post("/things", {}, "k", **(RETRY if marked else {}))

    assert_refused(refused)
    assert len(sent) == 1, sent
    assert row("k") == before
    assert len(views.calls) == 1


def test_a_client_that_never_says_so_is_bounded_all_the_same(
    api: Api, allow: Any, each_store: str
) -> None:
    allow(ratio=0.2)
    first_attempts(api, 9)
    fail(api, "k")
    views.behaviour = lambda request: 1 / 0

    answers = [api.post("/things", {}, "k").status_code for _ in range(10)]

    assert answers == [500, 500] + [503] * 8
    assert len(views.calls) == 12


def test_a_key_in_use_is_no_retry_and_a_lease_that_is_over_is_one(
    api: Api, allow: Any, each_store: str
) -> None:
    allow()
    abandon(api, "/things", {}, "k")
    assert_problem(api.post("/things", {}, "k"), 409, "idempotency_key_in_use")

    end_lease("k")

    assert_refused(api.post("/things", {}, "k"))


def test_a_claim_that_the_budget_refuses_is_given_back(
    api: Api, allow: Any, each_store: str
) -> None:
    allow()
    fail(api, "failed")
    abandon(api, "/things", {}, "over")
    end_lease("over")
    runs = len(views.calls)

    for key in ("failed", "over"):
        allow(REDIS_TIMEOUT=30 + len(key))  # a budget that is not known to be scarce
        assert_refused(api.post("/things", {}, key))
        assert key_of(key).state == "failed"
    assert len(views.calls) == runs

    allow(floor=2)
    for key in ("failed", "over"):
        assert api.post("/things", {"other": 1}, key).status_code == 422
        assert api.post("/things", {}, key).status_code == 201


def test_an_operation_that_the_budget_refuses_is_finished_by_the_job(
    api: Api, allow: Any, each_store: str
) -> None:
    allow()
    elsewhere.script = [elsewhere.lost]
    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending")

    assert_refused(api.post("/buy", {}, "k"))
    assert_refused(api.post("/buy", {}, "k", **RETRY))

    assert len(elsewhere.asked) == 1
    assert resume_operations() == 1
    assert (bought(), len(elsewhere.effects)) == (1, 1)
    again = api.post("/buy", {}, "k", **RETRY)
    assert (again.status_code, again["Idempotent-Replayed"]) == (201, "true")


def test_of_retries_at_once_no_more_run_than_the_budget_has(
    api: Api, allow: Any, each_store: str
) -> None:
    allow()
    names = [f"k{number}" for number in range(8)]
    for name in names:
        fail(api, name)
    allow(floor=3)
    runs = len(views.calls)

    answers = together([lambda name=name: api.post("/things", {}, name) for name in names])  # type: ignore[misc]

    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [503] * 5
    assert len(views.calls) - runs == 3
    states = [key_of(name).state for name in names]
    assert sorted(states) == ["failed"] * 5 + ["succeeded"] * 3


def test_a_refusal_is_told_to_whoever_counts(api: Api, allow: Any) -> None:
    allow()
    fail(api, "k")
    told: list[tuple[str, str]] = []

    def rejected(*, route: str, code: str, **_: Any) -> None:
        told.append((route, code))

    with listening(signals.key_rejected, rejected):
        for headers in ({}, RETRY):
            assert_refused(api.post("/things", {}, "k", **headers))

    assert told == [("POST /things", "retry_budget_exhausted")] * 2


# What is always served


@pytest.mark.parametrize(
    ("path", "header"), [("/things", "Idempotency_Key"), ("/shouted", "Shouted_Key")]
)
def test_a_stored_answer_is_served_whatever_the_budget(
    api: Api, allow: Any, each_store: str, path: str, header: str
) -> None:
    allow()
    first = api.post(path, {}, **{header: "k"})
    assert_refused(api.post(path, {}, **{header: "spent"}, **RETRY))

    with statements() as sent:
        again = api.post(path, {}, **{header: "k"}, **RETRY)

    assert_replay(again, first)
    # The portable store reads the answer with a statement of its own.
    assert len(sent) == (2 if each_store == "functions" else 3), sent
    assert views.effects() == 1


def test_a_stored_answer_whose_key_is_in_the_body_is_served_too(api: Api, allow: Any) -> None:
    allow()
    first = api.post("/body-field", {"client_token": "k"})

    again = api.post("/body-field", {"client_token": "k"}, **RETRY)

    assert_replay(again, first)
    assert_refused(api.post("/body-field", {"client_token": "other"}, **RETRY))
    assert keys() == 1


def test_a_replay_spends_nothing(api: Api, allow: Any) -> None:
    allow(floor=1)
    first = api.post("/things", {}, "k")

    for _ in range(3):
        assert_replay(api.post("/things", {}, "k", **RETRY), first)

    assert api.post("/things", {}, "other", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "third", **RETRY))


def test_above_the_budget_a_mismatch_and_a_doubt_are_said_as_ever(api: Api, allow: Any) -> None:
    allow()
    api.post("/things", {}, "k")
    assert api.post("/things", {"other": 1}, "k", **RETRY).status_code == 422

    IdempotencyKey.objects.filter(key="k").update(state="in_doubt", expires_at=None)

    assert_problem(api.post("/things", {}, "k", **RETRY), 409, "outcome_in_doubt", retry="never")


def test_an_answer_that_expires_between_the_look_and_the_claim_lets_nobody_run(
    api: Api, allow: Any, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idempotency.stores.database import DatabaseStore

    allow()
    api.post("/things", {}, "k")
    look = DatabaseStore.standing

    def then_expires(store: Any, digest: bytes) -> Any:
        standing = look(store, digest)
        end_ttl("k")
        return standing

    monkeypatch.setattr(DatabaseStore, "standing", then_expires)

    assert_refused(api.post("/things", {}, "k", **RETRY))
    assert len(views.calls) == 1
    assert keys() == 0


def test_fresh_requests_are_served_and_cost_a_statement_more_only_while_the_budget_is_scarce(
    api: Api, clock: Clock
) -> None:
    api.post("/things", {}, "warm")

    def cost() -> int:
        with statements() as sent:
            assert api.post("/things", {}, uuid.uuid4().hex).status_code == 201
        return len(sent)

    quiet = cost()
    assert_refused(api.post("/things", {}, "retry", **RETRY))

    assert cost() == quiet + 1
    clock.now += 60
    assert cost() == quiet


def test_what_an_obstacle_turns_away_gives_its_ticket_back(
    api: Api, allow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(floor=1)
    with monkeypatch.context() as full:
        full.setattr(budgeted.ThingView, "get_idempotency_obstacle", lambda view: BulkheadFull())
        for _ in range(3):
            assert_problem(api.post("/things", {}, "k", **RETRY), 503, "downstream_unavailable")

    assert api.post("/things", {}, "k", **RETRY).status_code == 201


# The order of checks


def test_who_may_not_hears_that_first_and_spends_nothing(api: Api, allow: Any) -> None:
    allow(floor=1)
    assert_refused_by_drf(api.post("/guarded", {}, "k", **RETRY))
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_user("member"))
    member = Api(client)
    views.permitted = False
    assert_refused_by_drf(member.post("/guarded", {}, "k", **RETRY))
    views.permitted = True

    assert member.post("/guarded", {}, "k", **RETRY).status_code == 201
    views.throttled = True
    assert_refused(member.post("/guarded", {}, "k2", **RETRY))
    assert member.post("/guarded", {}, "k2").status_code == 429


def test_a_retry_above_the_budget_is_refused_before_its_body_is_parsed(
    api: Api, allow: Any
) -> None:
    allow()

    assert_refused(api.post("/things", b"{", "k", **RETRY))


# Redis


def test_without_redis_each_process_decides_for_itself(api: Api, allow: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
    allow(floor=1, REDIS_URL=nobody, REDIS_TIMEOUT=0.1)

    first_attempts(api, 2)

    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))


def test_a_redis_that_does_not_answer_breaks_no_request(api: Api, allow: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        allow(floor=1, REDIS_URL=url, REDIS_TIMEOUT=0.05)

        first_attempts(api, 2)

        assert api.post("/things", {}, "a", **RETRY).status_code == 201
        assert_refused(api.post("/things", {}, "b", **RETRY))


def test_what_is_in_valkey_in_the_place_of_the_budget_breaks_no_request(
    api: Api, allow: Any, budgeted_views: str
) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as server:
        server.set(f"idempotency:client:service:{budgeted_views}", "not a hash")
    allow(floor=1)

    first_attempts(api, 2)

    assert api.post("/things", {}, "a", **RETRY).status_code == 201
    assert_refused(api.post("/things", {}, "b", **RETRY))
