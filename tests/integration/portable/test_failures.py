"""Contract cases 34 to 42 inside one process: whatever breaks, one effect and an honest answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
import time_machine
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, transaction
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response

from idempotency import operators, signals
from idempotency.core.errors import LeaseLost
from idempotency.http.requests import build_policy
from idempotency.models import EventKind, IdempotencyKey, KeyEvent
from idempotency.stores.statements import StatementCursor
from tests.integration.portable import views
from tests.integration.portable.api import (
    MARKER,
    Api,
    Gate,
    abandon,
    assert_problem,
    assert_replay,
    background,
    end_lease,
    key_of,
    listening,
    terminate,
)

pytestmark = pytest.mark.django_db(transaction=True)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])


def test_case_35_a_killed_owner_holds_the_key_until_its_lease_ends(
    api: Api, each_store: str
) -> None:
    abandon(api, "/things", {"amount": 1}, "k")

    busy = api.post("/things", {"amount": 1}, "k")
    assert_problem(busy, 409, "idempotency_key_in_use")
    assert 1 <= int(busy["Retry-After"]) <= 2
    end_lease("k")
    answer = api.post("/things", {"amount": 1}, "k")

    assert answer.status_code == 201
    assert MARKER not in answer
    assert (key_of("k").attempt, views.effects()) == (2, 1)
    takeover = KeyEvent.objects.get()
    assert (takeover.kind, takeover.attempt) == (EventKind.TAKEOVER, 2)


def break_a_deferred_constraint(request: Any) -> Response:
    """Foreign keys of Django are checked at COMMIT; this one points nowhere."""
    group = Group.objects.create(name="parent")
    Group.permissions.through.objects.create(group_id=group.pk, permission_id=2**31 - 1)
    return Response({"id": group.pk}, status=201)


@BOTH_ADAPTERS
def test_case_37_a_commit_that_fails_is_a_500_and_the_retry_replays_no_phantom(
    api: Api, path: str, each_store: str
) -> None:
    views.behaviour = break_a_deferred_constraint

    assert api.post(path, {"amount": 1}, "k").status_code == 500

    assert (key_of("k").state, views.effects()) == ("failed", 0)
    assert_problem(api.post(path, {"amount": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post(path, {"amount": 1}, "k").status_code == 500
    views.behaviour = None
    second = api.post(path, {"amount": 1}, "k")
    assert second.status_code == 201
    assert MARKER not in second
    assert views.effects() == 1


def terminate_this_session(*_: Any, **__: Any) -> None:
    terminate(connection.connection.info.backend_pid)


@contextmanager
def commit_of_the_work(behave: Callable[[Any, Callable[[], Any]], None]) -> Iterator[None]:
    """Replace the COMMIT of the work, and no other: Django's own, or the one that goes along with
    the completion."""
    commit, execute = psycopg.Connection.commit, StatementCursor.execute
    armed = []

    def replaced(session: Any, really: Callable[[], Any]) -> Any:
        if not armed:
            return really()
        armed.clear()
        return behave(session, really)

    def replaced_execute(cursor: Any, sql: Any, *args: Any, **kwargs: Any) -> Any:
        really = partial(execute, cursor, sql, *args, **kwargs)
        return replaced(cursor.connection, really) if cursor.commits else really()

    def arm(request: Any) -> Response:
        armed.append(True)
        return Response({"id": 7}, status=201)

    views.behaviour = arm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            psycopg.Connection,
            "commit",
            lambda session: replaced(session, partial(commit, session)),
        )
        patch.setattr(StatementCursor, "execute", replaced_execute)
        yield
    views.behaviour = None
    assert not armed


def lost_before(session: Any, commit: Callable[[], Any]) -> None:
    terminate(session.info.backend_pid)
    commit()


def lost_after(session: Any, commit: Callable[[], Any]) -> None:
    commit()
    session.pgconn.finish()
    raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.postgresql
@BOTH_ADAPTERS
def test_case_38_a_connection_lost_before_the_commit_is_a_503_and_the_retry_runs(
    api: Api, path: str, each_store: str
) -> None:
    with commit_of_the_work(lost_before):
        answer = api.post(path, {}, "k")

    assert_problem(answer, 503, "outcome_pending", retry="same_key")
    assert int(answer["Retry-After"]) >= 1
    assert views.effects() == 0
    # Nobody could know, so the key is held until the lease is over.
    assert_problem(api.post(path, {}, "k"), 409, "idempotency_key_in_use")
    end_lease("k")
    second = api.post(path, {}, "k")
    assert second.status_code == 201
    assert MARKER not in second
    assert views.effects() == 1


@pytest.mark.postgresql
@BOTH_ADAPTERS
def test_case_38_a_connection_lost_after_the_commit_is_a_503_and_the_retry_replays(
    api: Api, path: str, each_store: str
) -> None:
    with commit_of_the_work(lost_after):
        answer = api.post(path, {}, "k")

    assert_problem(answer, 503, "outcome_pending", retry="same_key")
    assert views.effects() == 1
    again = api.post(path, {}, "k")
    assert (again.status_code, again.json()) == (201, {"id": 7})
    assert again[MARKER] == "true"
    assert views.effects() == len(views.calls) == 1


@pytest.mark.postgresql
@BOTH_ADAPTERS
def test_case_38_a_connection_lost_in_the_work_is_a_503_and_the_retry_runs_at_once(
    api: Api, path: str
) -> None:
    views.before_work = terminate_this_session

    answer = api.post(path, {}, "k")

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert key_of("k").state == "failed"
    views.before_work = None
    assert api.post(path, {}, "k").status_code == 201
    assert views.effects() == 1


@pytest.mark.postgresql
@BOTH_ADAPTERS
def test_case_38_a_connection_lost_between_claim_and_work_is_a_503_and_the_retry_runs_at_once(
    api: Api, path: str
) -> None:
    def be_cut_off_and_notice(**_: Any) -> None:
        terminate_this_session()
        with pytest.raises(OperationalError):
            Group.objects.count()

    with listening(signals.key_claimed, be_cut_off_and_notice):
        answer = api.post(path, {}, "k")

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert views.calls == []
    assert key_of("k").state == "failed"
    assert api.post(path, {}, "k").status_code == 201


class Owners:
    """Lets the first owner, and then the second, be paused right after its claim."""

    def __init__(self) -> None:
        self.gates = [Gate(), Gate()]
        self._claims = 0

    def __call__(self, **_: Any) -> None:
        gate = self.gates[self._claims]
        self._claims += 1
        gate()


#: How the paused owner ends, and what its caller hears.
WAKES = {
    "completes": (None, 409),
    "releases": (lambda request: _raise(ValidationError("no")), 400),
    "fails": (lambda request: _raise(RuntimeError("a defect")), 500),
    "returns what is not kept": (lambda request: Response(status=429), 429),
    "returns a failure": (lambda request: Response(status=503), 503),
}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("how", WAKES)
def test_case_39_a_paused_owner_that_wakes_after_a_takeover_changes_nothing(
    api: Api, how: str, each_store: str
) -> None:
    behaviour, status = WAKES[how]
    owners = Owners()

    with (
        listening(signals.key_claimed, owners),
        background(lambda: api.post("/things", {}, "k")) as paused,
    ):
        owners.gates[0].wait_until_reached()
        end_lease("k")
        with background(lambda: api.post("/things", {}, "k")) as new:
            owners.gates[1].wait_until_reached()
            held = key_of("k")
            views.behaviour = behaviour
            owners.gates[0].open()
            loser = paused.result()
            after = key_of("k")
            views.behaviour = None
            owners.gates[1].open()
            winner = new.result()

    assert loser.status_code == status
    if how == "completes":
        assert_problem(loser, 409, "idempotency_lease_lost", retry="same_key")
        assert int(loser["Retry-After"]) >= 1
    assert (after.state, after.owner, after.attempt) == ("processing", held.owner, 2)
    assert after.lease_expires_at == held.lease_expires_at
    assert winner.status_code == 201
    assert_replay(api.post("/things", {}, "k"), winner)
    assert views.effects() == 1


@pytest.mark.postgresql
def test_case_39_an_owner_paused_inside_its_work_is_rolled_back_after_a_takeover(
    api: Api, each_store: str
) -> None:
    gate = Gate()

    def paused_after_the_insert(request: Any) -> Response:
        views.behaviour = None
        gate()
        return Response({"whose": "the paused one's"}, status=201)

    views.behaviour = paused_after_the_insert
    with background(lambda: api.post("/things", {}, "k")) as paused:
        gate.wait_until_reached()
        end_lease("k")
        winner = api.post("/things", {}, "k")
        gate.open()

    assert winner.status_code == 201
    assert_problem(paused.result(), 409, "idempotency_lease_lost", retry="same_key")
    assert views.effects() == 1
    assert_replay(api.post("/things", {}, "k"), winner)


def test_case_39_an_owner_whose_lease_is_over_completes_when_nobody_took_over(
    api: Api, each_store: str
) -> None:
    with listening(signals.key_claimed, lambda **_: end_lease("k")):
        first = api.post("/things", {}, "k")

    assert first.status_code == 201
    assert_replay(api.post("/things", {}, "k"), first)


@pytest.mark.parametrize("lease", [None, "30", True])
def test_case_41_a_lease_that_is_no_duration_is_a_configuration_error(lease: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="lease"):
        build_policy({"lease": lease})


@pytest.mark.parametrize("lease", [0, -1])
def test_case_41_a_lease_of_nothing_is_an_error_of_the_checks(configure: Any, lease: int) -> None:
    configure(LEASE=lease)

    assert "idempotency.E003" in [message.id for message in run_checks()]


@pytest.mark.parametrize("lease", [0.001, timedelta(microseconds=1), 0, -1])
def test_case_41_under_the_shortest_leases_there_is_one_effect_all_the_same(
    api: Api, configure: Any, lease: Any, each_store: str
) -> None:
    configure(LEASE=lease)
    gate = Gate()

    with (
        listening(signals.key_claimed, gate),
        background(lambda: api.post("/things", {}, "k")) as slow,
    ):
        gate.wait_until_reached()
        signals.key_claimed.disconnect(gate)
        # The lease is over by now, or in a moment: the retry takes over.
        winner = until_claimed(lambda: api.post("/things", {}, "k"))
        gate.open()

    assert winner.status_code == 201
    assert_problem(slow.result(), 409, "idempotency_lease_lost")
    assert views.effects() == 1
    assert_replay(api.post("/things", {}, "k"), winner)


def until_claimed(send: Callable[[], Any]) -> Any:
    answers = (send() for _ in range(1000))
    return next(answer for answer in answers if answer.status_code != 409)


@pytest.mark.parametrize("hours", [1, -1])
def test_case_42_a_clock_of_the_application_that_is_off_takes_nothing_over(
    api: Api, hours: int, each_store: str
) -> None:
    gate = Gate()
    views.before_work = gate

    with background(lambda: api.post("/things", {}, "k")) as first:
        gate.wait_until_reached()
        with time_machine.travel(timedelta(hours=hours), tick=True):
            assert_problem(api.post("/things", {}, "k"), 409, "idempotency_key_in_use")
        gate.open()

    assert first.result().status_code == 201
    with time_machine.travel(timedelta(hours=hours), tick=True):
        assert_replay(api.post("/things", {}, "k"), first.result())
    assert key_of("k").attempt == 1


@BOTH_ADAPTERS
def test_case_46_hooks_on_the_commit_fire_once_in_three_tries(
    api: Api, path: str, each_store: str
) -> None:
    fired: list[str] = []

    def enqueue(request: Any) -> Response:
        transaction.on_commit(lambda: fired.append("sent"))
        return Response({}, status=201)

    views.behaviour = enqueue
    for _ in range(3):
        assert api.post(path, {}, "k").status_code == 201

    assert fired == ["sent"]


@BOTH_ADAPTERS
def test_case_46_no_hook_fires_for_work_that_was_rolled_back(
    api: Api, path: str, each_store: str
) -> None:
    fired: list[str] = []

    def enqueue_and(end: Callable[[], Any]) -> Callable[[Any], Any]:
        def behaviour(request: Any) -> Any:
            transaction.on_commit(lambda: fired.append("sent"))
            return end()

        return behaviour

    for end in (
        lambda: _raise(RuntimeError("a defect")),
        lambda: Response(status=503),
        lambda: break_a_deferred_constraint(None),
    ):
        views.behaviour = enqueue_and(end)
        assert api.post(path, {}, "k").status_code >= 500
    views.behaviour = enqueue_and(lambda: Response(status=429))
    assert api.post(path, {}, "k").status_code == 429

    assert fired == []
    assert views.effects() == 0


@BOTH_ADAPTERS
def test_a_hook_that_fails_after_the_commit_does_not_undo_the_answer(
    api: Api, path: str, each_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook_that_fails(request: Any) -> Response:
        transaction.on_commit(lambda: _raise(RuntimeError("the broker is away")))
        return Response({"id": 7}, status=201)

    views.behaviour = hook_that_fails

    first = api.post(path, {}, "k")

    assert first.status_code == 201
    assert_replay(api.post(path, {}, "k"), first)
    assert views.effects() == 1
    assert "the broker is away" in caplog.text


@pytest.mark.parametrize("final", [False, True])
def test_case_57_a_forced_end_refuses_the_completion_of_a_live_owner(
    api: Api, final: bool, each_store: str
) -> None:
    gate = Gate()

    with (
        listening(signals.key_claimed, gate),
        background(lambda: api.post("/things", {}, "k")) as owner,
    ):
        gate.wait_until_reached()
        row = key_of("k")
        ended = operators.force_fail(
            row.pk, seen=operators.Seen.of(row), actor="op", reason="stuck", final=final
        )
        gate.open()
        loser = owner.result()

    assert ended
    assert_problem(loser, 409, "idempotency_lease_lost")
    assert views.effects() == 0
    again = api.post("/things", {}, "k")
    if final:
        assert again.status_code == 410
        assert again[MARKER] == "true"
        assert views.effects() == 0
    else:
        assert again.status_code == 201
        assert views.effects() == 1
    assert KeyEvent.objects.get(kind=EventKind.FORCE_FAILED).actor == "op"


def test_a_handler_can_renew_its_lease(api: Api, each_store: str) -> None:
    leases = []

    def renew(request: Any) -> Response:
        leases.append(key_of("k").lease_expires_at)
        request.idempotency.renew(timedelta(hours=1))
        with background(lambda: key_of("k").lease_expires_at) as elsewhere:
            leases.append(elsewhere.result())
        return Response({"attempt": request.idempotency.attempt}, status=201)

    views.behaviour = renew
    answer = api.post("/things", {}, "k")

    assert answer.json() == {"attempt": 1}
    if connection.vendor != "sqlite":  # where the work's transaction is what keeps others away
        assert leases[1] - leases[0] > timedelta(minutes=50)


def test_a_handler_that_renews_a_lost_lease_is_stopped(api: Api, each_store: str) -> None:
    stopped = []

    def renew(request: Any) -> Response:
        try:
            request.idempotency.renew()
        except LeaseLost:
            stopped.append(True)
            raise
        return Response(status=201)

    views.behaviour = renew
    with listening(
        signals.key_claimed,
        lambda **_: IdempotencyKey.objects.filter(key="k").update(
            owner="00000000-0000-0000-0000-000000000000"
        ),
    ):
        answer = api.post("/things", {}, "k")

    assert stopped == [True]
    assert_problem(answer, 409, "idempotency_lease_lost")
    assert views.effects() == 0


def test_a_handler_knows_its_key_its_attempt_and_its_downstream_key(
    api: Api, each_store: str
) -> None:
    seen: list[tuple[Any, ...]] = []

    def look(request: Any) -> Response:
        attempt = request.idempotency
        seen.append(
            (
                attempt.key,
                attempt.attempt,
                attempt.downstream_key("charge", "gateway"),
                attempt.downstream_key("charge"),
                attempt.downstream_key("refund", "gateway"),
            )
        )
        return Response(status=503 if attempt.attempt < 3 else 201)

    views.behaviour = look
    for _ in range(3):
        api.post("/things", {}, "k")
    api.post("/things", {}, "other")

    assert [(key, attempt) for key, attempt, *_ in seen[:3]] == [("k", 1), ("k", 2), ("k", 3)]
    assert len({downstream for *_, downstream, _, _ in seen[:3]}) == 1
    assert len({downstream for _, _, *keys in seen for downstream in keys}) == 6


@pytest.mark.postgresql
@pytest.mark.parametrize("path", ["/things", "/buy"])
def test_case_53_a_day_that_vanished_is_made_again_for_the_next_request(
    api: Api, path: str, each_store: str
) -> None:
    """The process had seen it, so the first request can only put its answer somewhere else."""
    api.post(path, {}, "warm")
    today = key_of("warm").response_day
    table = f"idempotency_storedresponse_p{today:%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table}")

    first = api.post(path, {}, "k")
    assert key_of("k").response_day != today
    second = api.post(path, {}, "k2")
    assert key_of("k2").response_day == today

    assert (first.status_code, second.status_code) == (201, 201)
    assert_replay(api.post(path, {}, "k"), first)
    assert_replay(api.post(path, {}, "k2"), second)
