"""The caller's deadline: honoured, clamped, handed on, and never in the way of recovery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rest_framework.response import Response

from idempotency import engine
from idempotency.http import deadlines
from idempotency.http.deadlines import current_deadline
from idempotency.testing import resume_operations
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import (
    Api,
    abandon,
    assert_problem,
    assert_replay,
    key_of,
    keys,
    statements,
)
from tests.integration.portable.elsewhere import bought, elsewhere, steps

pytestmark = pytest.mark.django_db(transaction=True)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/things", "/plain"])
NOTHING_LEFT = {"X_Request_Deadline_Ms": "0"}
ONE_SECOND = {"X_Request_Deadline_Ms": "1000"}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, *_: Any) -> None:
        """Let a second pass."""
        self.now += 1


@pytest.fixture(autouse=True)
def clock(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    other_side.reset()
    clock = Clock()
    monkeypatch.setattr(deadlines, "clock", clock)
    yield clock
    other_side.reset()


def seconds_left(api: Api, path: str, **headers: str) -> float:
    """What the handler of a request is told."""
    views.behaviour = lambda request: Response(
        {"left": request.deadline.remaining(), "now": current_deadline() == request.deadline}
    )
    answer = api.post(path, {}, f"k{keys()}", **headers).json()
    assert answer["now"] is True
    return float(answer["left"])


@BOTH_ADAPTERS
def test_a_handler_knows_how_long_its_caller_waits(api: Api, path: str) -> None:
    assert seconds_left(api, path, X_Request_Deadline_Ms="1500") == 1.5


@BOTH_ADAPTERS
def test_the_servers_maximum_is_the_most_that_is_granted(
    api: Api, path: str, configure: Any
) -> None:
    configure(MAX_DEADLINE=20)

    assert seconds_left(api, path, X_Request_Deadline_Ms="3600000") == 20
    assert seconds_left(api, path, X_Request_Deadline_Ms="9" * 400) == 20


@pytest.mark.parametrize("value", ["", "soon", "1.5", "1e3", "0x10", "1000, 2000", "²"])
def test_what_is_no_deadline_is_ignored(api: Api, value: str, configure: Any) -> None:
    configure(MAX_DEADLINE=20)

    assert seconds_left(api, "/things", X_Request_Deadline_Ms=value) == 20
    assert seconds_left(api, "/things") == 20


def test_a_handler_without_a_key_is_told_as_well(api: Api) -> None:
    views.behaviour = lambda request: Response({"left": request.deadline.remaining()})

    assert api.post("/things", {}, **ONE_SECOND).json() == {"left": 1.0}
    assert api.post("/plain-optional", {}, **ONE_SECOND).json() == {"left": 1.0}


@pytest.mark.parametrize("value", ["0", "-1", "000"])
@pytest.mark.parametrize("path", ["/things", "/plain", "/set/", "/guarded", "/buy", "/plain-buy"])
def test_with_nothing_left_it_is_a_504_before_any_work(api: Api, path: str, value: str) -> None:
    with statements() as sent:
        refused = api.post(path, {}, "k", X_Request_Deadline_Ms=value)

    assert_problem(refused, 504, "deadline_exceeded", retry="same_key")
    assert (sent, views.calls, steps.done) == ([], [], [])
    assert keys() == 0


@BOTH_ADAPTERS
def test_with_nothing_left_a_stored_answer_is_not_looked_up_either(api: Api, path: str) -> None:
    first = api.post(path, {}, "k")

    with statements() as sent:
        refused = api.post(path, {}, "k", **NOTHING_LEFT)

    assert_problem(refused, 504, "deadline_exceeded")
    assert sent == []
    assert_replay(api.post(path, {}, "k", **ONE_SECOND), first)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/things", "/plain-optional"])
def test_with_nothing_left_a_request_without_a_key_is_a_504_as_well(
    api: Api, path: str, method: str
) -> None:
    refused = api.send(method, path, **NOTHING_LEFT)

    assert_problem(refused, 504, "deadline_exceeded")
    assert views.calls == []


@pytest.mark.parametrize("key", ["k", None])
def test_a_deadline_that_passes_before_the_claim_is_a_504_without_one(
    api: Api, clock: Clock, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(view: Any, request: Any, *_: Any) -> None:
        clock.move()

    monkeypatch.setattr(views.ThingView, "check_permissions", slowly)

    refused = api.post("/things", {}, key, **ONE_SECOND)

    assert_problem(refused, 504, "deadline_exceeded")
    assert views.calls == []
    assert keys() == 0


def test_a_duplicate_waits_no_longer_than_its_caller(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandon(api, "/waiting", {}, "k")  # held for as long as its lease
    before = key_of("k").attempt
    waits = []

    class Watch:
        def wait(self, timeout: float) -> None:
            waits.append(timeout)
            clock.move()

    class Waiter:
        @contextmanager
        def watch(self, digest: bytes) -> Iterator[Watch]:
            yield Watch()

    monkeypatch.setattr(engine, "get_waiter", Waiter)

    refused = api.post("/waiting", {}, "k", **ONE_SECOND)

    assert_problem(refused, 504, "deadline_exceeded")
    assert waits == [1.0]
    assert key_of("k").attempt == before


@BOTH_ADAPTERS
def test_a_handler_that_finds_no_time_left_is_rolled_back_and_may_run_again(
    api: Api, path: str, clock: Clock, each_store: str
) -> None:
    def slow(request: Any) -> Any:
        clock.move()
        request.deadline.require()

    views.behaviour = slow
    refused = api.post(path, {}, "k", **ONE_SECOND)

    assert_problem(refused, 504, "deadline_exceeded", retry="same_key")
    assert views.effects() == 0
    assert key_of("k").state == "failed"
    views.behaviour = None
    assert api.post(path, {}, "k", **ONE_SECOND).status_code == 201


@pytest.mark.parametrize("path", ["/things", "/plain-optional"])
def test_a_handler_without_a_key_that_finds_no_time_left_is_rolled_back(
    api: Api, path: str, clock: Clock
) -> None:
    def slow(request: Any) -> Any:
        clock.move()
        request.deadline.require()

    views.behaviour = slow

    assert_problem(api.post(path, {}, **ONE_SECOND), 504, "deadline_exceeded")
    assert views.effects() == 0


@pytest.mark.parametrize("path", ["/buy", "/plain-buy"])
def test_an_operation_grants_its_call_what_the_caller_has_left(
    api: Api, path: str, clock: Clock, each_store: str
) -> None:
    seen: list[float | None] = []

    def look(key: str) -> Any:
        deadline = current_deadline()
        seen.append(None if deadline is None else deadline.remaining())
        return elsewhere.unknown(key)

    def half_a_second() -> None:
        clock.now += 0.5

    elsewhere.script = [look, look]
    steps.prepare = half_a_second

    api.post(path, {}, "k", **ONE_SECOND)
    resume_operations()

    assert seen == [0.5, None]
    assert current_deadline() is None


@pytest.mark.parametrize("path", ["/buy", "/plain-buy"])
def test_what_was_prepared_is_finished_by_the_job_though_the_deadline_is_over(
    api: Api, path: str, clock: Clock, each_store: str
) -> None:
    def bounded(key: str) -> Any:
        deadline = current_deadline()
        if deadline is not None:
            deadline.require()
        return elsewhere.done(key)

    elsewhere.script = [bounded, bounded]
    steps.prepare = clock.move

    pending = api.post(path, {}, "k", **ONE_SECOND)

    assert_problem(pending, 503, "outcome_pending", retry="same_key")
    assert key_of("k").recovery_point == "prepared"
    assert_problem(api.post(path, {}, "k", **NOTHING_LEFT), 504, "deadline_exceeded")
    assert key_of("k").attempt == 1
    assert resume_operations() == 1
    assert bought() == 1
    again = api.post(path, {}, "k", **ONE_SECOND)
    assert (again.status_code, again["Idempotent-Replayed"]) == (201, "true")


@pytest.mark.parametrize("path", ["/buy", "/plain-buy"])
def test_what_the_call_achieved_is_kept_though_the_deadline_is_over(
    api: Api, path: str, clock: Clock, each_store: str
) -> None:
    def slowly(key: str) -> Any:
        clock.move()
        return elsewhere.done(key)

    elsewhere.script = [slowly]

    assert api.post(path, {}, "k", **ONE_SECOND).status_code == 201
    assert bought() == 1
