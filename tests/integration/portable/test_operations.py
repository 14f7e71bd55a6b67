"""Contract cases 43 to 45 and the rest of the three steps, with a service that is not ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from rest_framework.exceptions import ValidationError

from idempotency import definitions, maintenance, operators, signals
from idempotency.models import EventKind, IdempotencyKey, KeyEvent
from idempotency.operations import Reply
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable.api import (
    MARKER,
    Api,
    Gate,
    Killed,
    assert_problem,
    assert_replay,
    background,
    end_lease,
    end_ttl,
    key_of,
    keys,
    kill,
    listening,
)
from tests.integration.portable.elsewhere import bought, elsewhere, pending, steps

pytestmark = pytest.mark.django_db(transaction=True)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/buy", "/plain-buy"])


@pytest.fixture(autouse=True)
def fresh_service() -> Iterator[None]:
    other_side.reset()
    yield
    other_side.reset()


def raising(error: Exception) -> Callable[..., Any]:
    def step(*_: Any) -> Any:
        raise error

    return step


@BOTH_ADAPTERS
def test_an_operation_is_prepared_called_and_finalized_once(
    api: Api, path: str, each_store: str
) -> None:
    first = api.post(path, {}, "k")

    assert (first.status_code, first.json()) == (201, {"bought": "e1", "é": None})
    assert first["Content-Type"] == "application/json"
    assert first["X-Request-ID"] != "1"  # of one exchange: the operation's own is not kept
    again = api.post(path, {}, "k")
    assert_replay(again, first)
    assert again["Location"] == first["Location"]
    assert steps.done == ["prepare", "finalize"]
    assert (bought(), pending(), len(elsewhere.asked)) == (1, 0, 1)
    row = key_of("k")
    assert (row.state, row.context) == ("succeeded", None)


def test_the_call_is_made_outside_any_transaction(api: Api, each_store: str) -> None:
    seen = []

    def look(key: str) -> Any:
        seen.append((connection.in_atomic_block, pending(), key_of("k").recovery_point))
        return elsewhere.done(key)

    elsewhere.script = [look]
    api.post("/buy", {}, "k")

    assert seen == [(False, 1, "prepared")]


@BOTH_ADAPTERS
def test_case_45_a_refusal_of_the_other_side_is_stored_and_replayed(
    api: Api, path: str, each_store: str
) -> None:
    elsewhere.script = [elsewhere.refused]

    first = api.post(path, {}, "k")

    assert (first.status_code, first.json()) == (402, {"code": "declined"})
    assert_replay(api.post(path, {}, "k"), first)
    assert len(elsewhere.asked) == 1
    assert (bought(), pending()) == (0, 0)


@BOTH_ADAPTERS
def test_a_call_that_was_not_sent_is_withdrawn_and_the_same_request_may_run_again(
    api: Api, path: str, each_store: str
) -> None:
    elsewhere.script = [elsewhere.not_sent]

    refused = api.post(path, {"a": 1}, "k")

    assert_problem(refused, 503, "downstream_unavailable", retry="same_key")
    assert refused["Retry-After"] == "7"
    assert steps.done == ["prepare", "withdraw"]
    row = key_of("k")
    assert (row.state, row.recovery_point, row.context) == ("failed", "", None)
    assert pending() == 0
    assert_problem(api.post(path, {"a": 2}, "k"), 422, "idempotency_key_reused")
    second = api.post(path, {"a": 1}, "k")
    assert second.status_code == 201
    assert steps.done == ["prepare", "withdraw", "prepare", "finalize"]
    # Another intent, so another call: the other side would refuse it under the key of the first.
    assert len(set(elsewhere.asked)) == 2
    assert bought() == 1


@BOTH_ADAPTERS
@pytest.mark.parametrize("how", ["unknown", "lost"])
def test_case_44_an_unknown_outcome_is_resumed_by_the_retry_with_the_same_key(
    api: Api, path: str, how: str, each_store: str
) -> None:
    elsewhere.script = [getattr(elsewhere, how)]

    waiting = api.post(path, {}, "k")

    assert_problem(waiting, 503, "outcome_pending", retry="same_key")
    assert int(waiting["Retry-After"]) >= 1
    assert (key_of("k").state, pending()) == ("processing", 1)
    second = api.post(path, {}, "k")
    assert (second.status_code, second.json()["bought"]) == (201, "e1")
    assert MARKER not in second
    assert steps.done == ["prepare", "finalize"]
    assert len(elsewhere.asked) == 2
    assert len(set(elsewhere.asked)) == len(elsewhere.effects) == bought() == 1
    assert_replay(api.post(path, {}, "k"), second)


def test_an_operation_that_stays_unknown_is_never_withdrawn(api: Api, each_store: str) -> None:
    """Not sent this time says nothing about the time before."""
    elsewhere.script = [elsewhere.lost, elsewhere.not_sent, elsewhere.refused]

    for _ in range(2):
        assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", retry="same_key")

    assert "withdraw" not in steps.done
    assert (key_of("k").state, pending()) == ("processing", 1)
    assert api.post("/buy", {}, "k").status_code == 402


@pytest.mark.parametrize("how", ["unknown", "lost"])
def test_an_unknown_outcome_of_a_call_that_cannot_be_repeated_is_in_doubt(
    api: Api, how: str, each_store: str
) -> None:
    elsewhere.script = [getattr(elsewhere, how)]

    for _ in range(3):
        doubt = api.post("/buy-once", {}, "k")
        assert_problem(doubt, 409, "outcome_in_doubt", retry="never")
        assert "Retry-After" not in doubt

    assert len(elsewhere.asked) == 1
    assert (key_of("k").state, pending()) == ("in_doubt", 1)
    assert KeyEvent.objects.get().kind == EventKind.IN_DOUBT
    assert maintenance.resume_operations().done == 0
    assert len(elsewhere.asked) == 1


def test_a_call_that_cannot_be_repeated_is_withdrawn_when_it_was_not_sent(
    api: Api, each_store: str
) -> None:
    elsewhere.script = [elsewhere.not_sent]

    assert_problem(api.post("/buy-once", {}, "k"), 503, "downstream_unavailable")
    assert api.post("/buy-once", {}, "k").status_code == 201
    assert bought() == 1


def test_a_call_that_cannot_be_repeated_and_was_interrupted_is_in_doubt(
    api: Api, each_store: str
) -> None:
    with listening(signals.operation_called, kill), pytest.raises(Killed):
        api.post("/buy-once", {}, "k")
    end_lease("k")

    assert_problem(api.post("/buy-once", {}, "k"), 409, "outcome_in_doubt")
    assert len(elsewhere.asked) == 1


CRASHES = {
    "after the claim": (signals.key_claimed, 0),
    "after prepare": (signals.operation_prepared, 0),
    "after the effect": (signals.operation_called, 1),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("who", ["the client", "the job"])
def test_case_43_a_killed_operation_is_resumed_with_the_same_key(
    api: Api, crash: str, who: str, each_store: str
) -> None:
    signal, asked = CRASHES[crash]
    with listening(signal, kill), pytest.raises(Killed):
        api.post("/buy", {}, "k")
    assert len(elsewhere.asked) == asked
    assert_problem(api.post("/buy", {}, "k"), 409, "idempotency_key_in_use")
    end_lease("k")

    if who == "the job":
        done = maintenance.resume_operations().done
        # Before the recovery point there is nothing to resume: only the client can repeat it.
        assert done == (0 if crash == "after the claim" else 1)
    answer = api.post("/buy", {}, "k")

    assert answer.status_code == 201
    assert (MARKER in answer) == (who == "the job" and crash != "after the claim")
    assert len(set(elsewhere.asked)) == len(elsewhere.effects) == bought() == 1
    assert pending() == 0


def test_case_43_a_process_killed_inside_finalize_is_resumed(api: Api, each_store: str) -> None:
    steps.finalize = kill
    with pytest.raises(Killed):
        api.post("/buy", {}, "k")
    steps.finalize = lambda: None
    end_lease("k")

    assert maintenance.resume_operations().done == 1

    again = api.post("/buy", {}, "k")
    assert again[MARKER] == "true"
    assert len(elsewhere.effects) == bought() == 1


def test_an_exception_in_the_call_counts_as_unknown(api: Api, each_store: str) -> None:
    elsewhere.script = [raising(ConnectionResetError())]

    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending")
    assert key_of("k").failure == "ConnectionResetError in the call"
    assert api.post("/buy", {}, "k").status_code == 201
    assert len(set(elsewhere.asked)) == 1


@pytest.mark.parametrize("returned", [None, True, {"id": 1}], ids=str)
def test_a_call_that_returns_no_outcome_counts_as_unknown(api: Api, returned: Any) -> None:
    elsewhere.script = [lambda key: returned]

    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending")
    assert api.post("/buy", {}, "k").status_code == 201


def break_the_commit() -> None:
    group = Group.objects.create(name="parent")
    Group.permissions.through.objects.create(group_id=group.pk, permission_id=2**31 - 1)


FINALIZE_FAILS = {
    "raises": raising(RuntimeError("a defect")),
    "raises a client error": raising(ValidationError("no")),
    "has its COMMIT fail": break_the_commit,
    "answers a failure": lambda: Reply(503, {}),
    "answers what is no JSON": lambda: Reply(201, object()),
}


@pytest.mark.parametrize("how", FINALIZE_FAILS)
def test_a_finalize_that_fails_is_rolled_back_and_resumed(
    api: Api, how: str, each_store: str
) -> None:
    steps.finalize = FINALIZE_FAILS[how]  # type: ignore[assignment]

    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", retry="same_key")

    assert (key_of("k").state, pending(), bought()) == ("processing", 1, 0)
    steps.finalize = lambda: None
    assert maintenance.resume_operations().done == 1
    assert len(elsewhere.effects) == bought() == 1
    assert api.post("/buy", {}, "k")[MARKER] == "true"


def test_a_withdraw_that_fails_leaves_the_intent_to_be_resumed(api: Api, each_store: str) -> None:
    elsewhere.script = [elsewhere.not_sent]
    steps.withdraw = raising(RuntimeError("a defect"))

    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", retry="same_key")

    assert (key_of("k").state, pending()) == ("processing", 1)
    assert api.post("/buy", {}, "k").status_code == 201
    assert (bought(), pending()) == (1, 0)


def test_a_client_error_in_prepare_releases_the_key(api: Api, each_store: str) -> None:
    steps.prepare = raising(ValidationError("no"))

    assert api.post("/buy", {"a": 1}, "k").status_code == 400
    assert (keys(), pending(), elsewhere.asked) == (0, 0, [])
    steps.prepare = lambda: None
    assert api.post("/buy", {"a": 2}, "k").status_code == 201


PREPARE_FAILS = {
    "raises": raising(RuntimeError("a defect")),
    "returns no dict": lambda: ["a list"],
    "returns what is no JSON": lambda: {"a": object()},
    "has its COMMIT fail": break_the_commit,
    "replies with a failure": lambda: Reply(503, {}),
}


@pytest.mark.parametrize("how", PREPARE_FAILS)
def test_a_prepare_that_fails_is_rolled_back_and_nothing_is_called(
    api: Api, how: str, each_store: str
) -> None:
    steps.prepare = PREPARE_FAILS[how]

    assert api.post("/buy", {"a": 1}, "k").status_code in (500, 503)

    row = key_of("k")
    assert (row.state, row.recovery_point, pending(), elsewhere.asked) == ("failed", "", 0, [])
    steps.prepare = lambda: None
    assert_problem(api.post("/buy", {"a": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post("/buy", {"a": 1}, "k").status_code == 201


@BOTH_ADAPTERS
def test_a_reply_of_prepare_ends_the_operation_and_is_stored(
    api: Api, path: str, each_store: str
) -> None:
    steps.prepare = lambda: Reply(422, {"code": "too_much"}, content_type="application/x+json")

    first = api.post(path, {}, "k")

    assert (first.status_code, first["Content-Type"]) == (422, "application/x+json")
    assert_replay(api.post(path, {}, "k"), first)
    assert (pending(), elsewhere.asked) == (1, [])


def test_a_reply_of_prepare_that_is_a_refusal_releases_the_key(api: Api) -> None:
    steps.prepare = lambda: Reply(429, {"code": "slowly"})

    assert api.post("/buy", {}, "k").status_code == 429
    assert (keys(), pending(), elsewhere.asked) == (0, 0, [])


def test_a_reply_without_a_body_is_replayed(api: Api) -> None:
    steps.finalize = lambda: Reply(204, None)

    first = api.post("/buy", {}, "k")

    assert (first.status_code, first.content) == (204, b"")
    assert "Content-Type" not in first
    assert_replay(api.post("/buy", {}, "k"), first)


@pytest.mark.parametrize("step", ["prepare", "finalize"])
def test_a_reply_above_the_limit_is_given_once_and_then_is_not_stored(
    api: Api, step: str, each_store: str
) -> None:
    setattr(steps, step, lambda: Reply(201, {"a": "long one"}, {"Location": "/things/7"}))

    assert api.post("/buy-small", {}, "k").json() == {"a": "long one"}

    problem = assert_problem(api.post("/buy-small", {}, "k"), 409, "response_not_stored")
    assert problem["resource"] == "/things/7"
    assert len(elsewhere.asked) == (step == "finalize")


def test_a_job_that_resumes_keeps_to_the_policy_of_the_view(api: Api, each_store: str) -> None:
    elsewhere.script = [elsewhere.unknown]
    api.post("/buy-small", {}, "k")

    assert maintenance.resume_operations().done == 1

    assert_problem(api.post("/buy-small", {}, "k"), 409, "response_not_stored")


def test_case_39_an_owner_paused_in_its_call_loses_to_the_one_who_resumed(
    api: Api, each_store: str
) -> None:
    gate = Gate()

    def slow(key: str) -> Any:
        gate()
        return elsewhere.done(key)

    elsewhere.script = [slow]
    with background(lambda: api.post("/buy", {}, "k")) as paused:
        gate.wait_until_reached()
        end_lease("k")
        assert maintenance.resume_operations().done == 1
        gate.open()

    assert_problem(paused.result(), 409, "idempotency_lease_lost")
    assert len(elsewhere.effects) == bought() == 1
    assert api.post("/buy", {}, "k")[MARKER] == "true"


def test_case_39_an_owner_that_did_not_send_cannot_withdraw_after_a_takeover(
    api: Api, each_store: str
) -> None:
    gate = Gate()

    def slow(key: str) -> Any:
        gate()
        return elsewhere.not_sent(key)

    elsewhere.script = [slow, elsewhere.unknown]
    with background(lambda: api.post("/buy", {}, "k")) as paused:
        gate.wait_until_reached()
        end_lease("k")
        assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending")
        gate.open()

    assert_problem(paused.result(), 409, "idempotency_lease_lost")
    assert (key_of("k").state, key_of("k").recovery_point, pending()) == (
        "processing",
        "prepared",
        1,
    )


def test_an_operation_that_was_freed_by_an_operator_resumes_where_it_was(
    api: Api, each_store: str
) -> None:
    with listening(signals.operation_called, kill), pytest.raises(Killed):
        api.post("/buy", {}, "k")
    row = key_of("k")
    assert operators.force_fail(
        row.pk, seen=operators.Seen.of(row), actor="op", reason="the worker is gone", final=False
    )

    assert api.post("/buy", {}, "k").status_code == 201

    assert steps.done == ["prepare", "finalize"]
    assert len(set(elsewhere.asked)) == len(elsewhere.effects) == bought() == 1


def test_a_key_that_is_used_again_after_it_expired_is_another_purchase(
    api: Api, each_store: str
) -> None:
    api.post("/buy", {}, "k")
    end_ttl("k")

    assert api.post("/buy", {}, "k").json()["bought"] == "e2"

    assert len(set(elsewhere.asked)) == bought() == 2


def test_a_hook_that_fails_after_prepare_does_not_stop_the_operation(
    api: Api, each_store: str
) -> None:
    steps.prepare = lambda: transaction.on_commit(raising(RuntimeError("the broker is away")))

    assert api.post("/buy", {}, "k").status_code == 201
    assert bought() == 1


def test_a_hook_that_fails_after_finalize_does_not_undo_the_answer(
    api: Api, each_store: str
) -> None:
    steps.finalize = lambda: transaction.on_commit(raising(RuntimeError("the broker is away")))

    first = api.post("/buy", {}, "k")

    assert first.status_code == 201
    assert_replay(api.post("/buy", {}, "k"), first)


def test_a_database_that_goes_away_after_the_call_leaves_the_outcome_pending(
    api: Api, each_store: str
) -> None:
    """For a call that cannot be repeated too: nobody could write down that it is in doubt."""

    def refuse(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        raise OperationalError("the database is away")

    def lose_the_database(key: str) -> Any:
        away.append(connection.execute_wrapper(refuse))
        away[0].__enter__()
        return elsewhere.lost(key)

    for path in ("/buy", "/buy-once"):
        away: list[Any] = []
        elsewhere.script = [lose_the_database]
        answer = api.post(path, {}, "k")
        away[0].__exit__(None, None, None)
        assert_problem(answer, 503, "outcome_pending", retry="same_key")
    for row in IdempotencyKey.objects.all():
        assert (row.state, row.recovery_point) == ("processing", "prepared")

    IdempotencyKey.objects.update(lease_expires_at="2000-01-01T00:00:00Z")
    assert api.post("/buy", {}, "k").status_code == 201
    assert_problem(api.post("/buy-once", {}, "k"), 409, "outcome_in_doubt")


UNKEYED = {
    "done": (201, 1, 0),
    "refused": (402, 0, 0),
    "not_sent": (503, 0, 0),
    "unknown": (409, 0, 1),
    "lost": (409, 0, 1),
}


@BOTH_ADAPTERS
@pytest.mark.parametrize("how", UNKEYED)
def test_an_operation_without_a_key_runs_through_its_steps(api: Api, path: str, how: str) -> None:
    elsewhere.script = [getattr(elsewhere, how)]

    answer = api.post(path, {})

    status, done, left = UNKEYED[how]
    assert answer.status_code == status
    assert MARKER not in answer
    assert (bought(), pending(), keys()) == (done, left, 0)
    if how == "not_sent":
        assert_problem(answer, 503, "downstream_unavailable")
        assert answer["Retry-After"] == "7"
    if status == 409:
        assert_problem(answer, 409, "outcome_in_doubt", retry="never")


def test_an_operation_without_a_key_that_is_in_doubt_is_logged_as_an_error(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere.script = [raising(ConnectionResetError())]

    assert_problem(api.post("/buy", {}), 409, "outcome_in_doubt")

    assert "tests.buy without a key is in doubt" in caplog.text
    assert caplog.records[-1].levelno >= logging.WARNING


def test_an_operation_without_a_key_whose_prepare_is_marked_for_rollback_has_failed(
    api: Api,
) -> None:
    steps.prepare = lambda: transaction.set_rollback(True)

    assert api.post("/buy", {}).status_code == 500

    assert elsewhere.asked == []


@pytest.mark.parametrize("how", [*FINALIZE_FAILS, "is marked for rollback"])
def test_an_operation_without_a_key_that_was_done_and_is_not_saved_is_in_doubt(
    api: Api, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller who hears a 500, or "try again", would do it again."""
    marks = {"is marked for rollback": lambda: transaction.set_rollback(True)}
    steps.finalize = (FINALIZE_FAILS | marks)[how]  # type: ignore[assignment]

    assert_problem(api.post("/buy", {}), 409, "outcome_in_doubt", "never")

    assert len(elsewhere.effects) == 1
    assert "tests.buy without a key ended, and its result is not saved" in caplog.text


def test_a_hook_that_fails_after_finalize_without_a_key_leaves_no_doubt(api: Api) -> None:
    steps.finalize = lambda: transaction.on_commit(raising(RuntimeError("the broker is away")))

    assert api.post("/buy", {}).status_code == 201
    assert (bought(), len(elsewhere.effects)) == (1, 1)


def test_a_secret_that_changes_changes_no_call_that_is_open(
    api: Api, each_store: str, configure: Any
) -> None:
    configure(SECRET="the old one")
    elsewhere.script = [elsewhere.lost]
    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", "same_key")
    configure(SECRET="the new one")

    assert api.post("/buy", {}, "k").status_code == 201
    assert (len(set(elsewhere.asked)), len(elsewhere.effects)) == (1, 1)


def test_an_operation_that_this_process_does_not_know_is_left_to_one_that_does(
    api: Api, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a deployment: the old release gets the retry of a new one's request."""
    elsewhere.script = [elsewhere.lost]
    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", "same_key")
    with monkeypatch.context() as older:
        older.delitem(definitions._registry, "tests.buy")
        for _ in range(2):  # the second one too: no lease is in its way
            assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", "same_key")

    assert api.post("/buy", {}, "k").status_code == 201
    assert len(elsewhere.effects) == 1


def test_operations_without_a_key_have_keys_of_their_own_downstream(api: Api) -> None:
    for _ in range(2):
        assert api.post("/buy", {}).status_code == 201
    assert len(set(elsewhere.asked)) == 2
