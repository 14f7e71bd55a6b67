"""Rotating the key of encryption, beside traffic: every replay still answers."""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from idempotency import approvals, encryption, outbox
from idempotency.approvals import Person
from idempotency.kept import context_of
from idempotency.models import Choice, IdempotencyKey, OutboxMessage, Proposal, StoredResponse
from idempotency.outbox import nudging
from idempotency.rotation import rotate_encryption
from idempotency.stores import get_store
from idempotency.stores.base import Seen
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import PATIENCE, Api, assert_replay, key_of
from tests.integration.portable.conformance.harness import elsewhere as elsewhere_done
from tests.integration.portable.elsewhere import bought, elsewhere
from tests.integration.portable.outbox.mail import mail
from tests.plugins.measured import Measure

pytestmark = pytest.mark.django_db
beside_others = pytest.mark.django_db(transaction=True)

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture(autouse=True)
def fresh_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nudging, "nudge", lambda using: None)
    other_side.reset()
    yield
    other_side.reset()


@pytest.fixture
def keys(configure: Any) -> Callable[..., str]:
    """Configure keys, the one that writes first; the name of that one."""

    def change(*keys: str | None) -> str:
        configure(ENCRYPTION_KEYS=keys)
        return encryption.writing_key() or "none"

    return change


def leave_open(api: Api, key: str) -> None:
    """An operation that nobody runs, and whose outcome is not known."""
    elsewhere.script = [elsewhere.lost]
    assert api.post("/buy", {}, key).status_code == 503


def move_to_another_day(key: str) -> None:
    row = key_of(key)
    tomorrow = row.response_day + timedelta(days=1)
    StoredResponse.objects.filter(pk=row.pk).update(day=tomorrow)
    IdempotencyKey.objects.filter(pk=row.pk).update(response_day=tomorrow)


def send(name: str) -> None:
    with transaction.atomic():
        outbox.send(mail.__name__, {"name": name})


def propose(key: str) -> Proposal:
    """A person proposes that the operation succeeded."""
    row = key_of(key)
    result = {"id": "e1"}
    told = {"result": result, "against": "", "reason": "seen", "person": Person("maria")}
    return approvals.propose(row, Seen.of(row), Choice.SUCCEEDED, **told)


def sealed_by() -> set[str | None]:
    """The keys that what is stored is under; None: in clear."""
    answers = StoredResponse.objects.values_list("headers", flat=True)
    kept = IdempotencyKey.objects.filter(context__isnull=False).values_list("context", flat=True)
    messages = OutboxMessage.objects.values_list("payload", flat=True)
    return {
        *map(encryption.key_of, answers),
        *(encryption.key_of_json(it["context"]) for it in kept),
        *map(encryption.key_of_json, messages),
        *map(encryption.key_of_json, Proposal.objects.values_list("result", flat=True)),
    }


def assert_all_is(where: str) -> None:
    """What an operator waits for before he removes a key."""
    rehearsed = rotate_encryption(dry_run=True)
    assert rehearsed.details == (f"all is {where}: no other key is needed",)
    assert (rehearsed.done, rehearsed.failed, rehearsed.more) == (0, 0, False)


def test_all_that_is_stored_comes_under_the_key_that_writes(
    api: Api, each_store: str, keys: Any, configure: Any
) -> None:
    firsts = {name: api.post("/things", {}, name) for name in ("clear-1", "clear-2")}
    old = keys(OLD)
    firsts |= {name: api.post("/things", {}, name) for name in ("old-1", "old-2", "old-3")}
    move_to_another_day("old-1")
    leave_open(api, "open")
    send("Jo")
    propose("open")
    new = keys(NEW, OLD)
    firsts["new"] = api.post("/things", {}, "new")
    configure(BATCH_SIZE=2)
    told = (
        f"1 messages under {old}",
        f"1 operations under {old}",
        f"1 proposals under {old}",
        "2 answers in clear",
        f"3 answers under {old}",
    )

    rehearsed = rotate_encryption(dry_run=True)
    assert (rehearsed.done, sorted(rehearsed.details)) == (8, sorted(told))
    assert sealed_by() == {None, old, new}
    rotated = rotate_encryption()
    assert (rotated.done, rotated.failed, rotated.more) == (8, 0, False)
    assert sealed_by() == {new}

    keys(NEW)
    assert rotate_encryption(dry_run=True).details == (
        f"all is under {new}: no other key is needed",
    )
    for name, first in firsts.items():
        assert_replay(api.post("/things", {}, name), first)
    assert api.post("/buy", {}, "open").status_code == 201
    assert (bought(), len(views.calls)) == (1, 6)


def test_encryption_is_taken_back_by_the_same_way(api: Api, keys: Any) -> None:
    keys(OLD)
    first = api.post("/things", {}, "k")
    leave_open(api, "open")
    keys(None, OLD)
    assert rotate_encryption().done == 2
    assert sealed_by() == {None}
    keys()
    assert_all_is("in clear")
    assert_replay(api.post("/things", {}, "k"), first)
    assert api.post("/buy", {}, "open").status_code == 201


def test_what_nobody_can_read_is_counted_and_left_for_its_key(
    api: Api, keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old = keys(OLD)
    first = api.post("/things", {}, "lost")
    keys(NEW)
    api.post("/things", {}, "k")
    with pytest.raises(CommandError, match="1 failed") as caught:
        call_command("idempotency_rotate_encryption", dry_run=True)
    assert caught.value.returncode == 1
    assert f"answers under {old}: that key is not in ENCRYPTION_KEYS" in caplog.text
    assert rotate_encryption().failed == 1
    keys(NEW, OLD)
    assert_replay(api.post("/things", {}, "lost"), first)
    StoredResponse.objects.filter(key_id=key_of("lost").pk).update(body=b"changed")
    result = rotate_encryption()
    assert (result.done, result.failed) == (0, 1)
    assert f"one of the answers: The key {old} does not open it" in caplog.text


# Beside others


@contextmanager
def before_a_write_of(table: str, work: Callable[[], Any]) -> Iterator[list[str]]:
    """Before this connection's first UPDATE of the table, let somebody else do ``work``."""
    paused: list[str] = []

    def pause(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith(f'UPDATE "{table}"') and not paused:
            paused.append(sql)
            elsewhere_done(work)
        return execute(sql, *rest)

    with connection.execute_wrapper(pause):
        yield paused
    assert paused, f"{table} was never written"


@pytest.mark.postgresql  # SQLite has one writer, so nobody comes between
@beside_others
def test_an_answer_that_is_erased_meanwhile_stays_erased(api: Api, keys: Any) -> None:
    keys(OLD)
    api.post("/things", {}, "k")
    keys(NEW, OLD)
    answers = StoredResponse.objects.all()
    with before_a_write_of("idempotency_storedresponse", lambda: answers.update(body=None)):
        rotate_encryption()
    assert answers.get().body is None


@beside_others
def test_an_operation_that_ends_meanwhile_is_left_at_its_end(
    api: Api, each_store: str, keys: Any
) -> None:
    keys(OLD)
    leave_open(api, "k")
    keys(NEW, OLD)
    with before_a_write_of("idempotency_idempotencykey", lambda: api.post("/buy", {}, "k")):
        rotate_encryption()
    assert (key_of("k").state, key_of("k").context) == ("succeeded", None)


@beside_others
def test_an_operation_that_is_prepared_anew_meanwhile_keeps_its_new_intent(
    api: Api, each_store: str, keys: Any
) -> None:
    keys(OLD)
    leave_open(api, "k")
    before = context_of(key_of("k").context)
    keys(NEW, OLD)

    def prepare_anew() -> None:
        lease = get_store().take_over(key_of("k").pk, timedelta(minutes=1))
        assert lease is not None
        get_store().fail(lease, "certainly not sent", timedelta(hours=1), forget_recovery=True)
        leave_open(api, "k")

    with before_a_write_of("idempotency_idempotencykey", prepare_anew):
        rotate_encryption()
    assert context_of(key_of("k").context)["intent"] == before["intent"] + 1


def test_an_operation_that_somebody_runs_is_left_to_him(
    api: Api, each_store: str, keys: Any
) -> None:
    old = keys(OLD)
    leave_open(api, "k")
    lease = get_store().take_over(key_of("k").pk, timedelta(minutes=1))
    assert lease is not None
    new = keys(NEW, OLD)
    result = rotate_encryption()
    assert (result.done, result.more) == (0, True)
    assert "1 operations are running: run this again" in result.details
    assert sealed_by() == {old}
    get_store().suspend(lease, "it ends")
    assert rotate_encryption().done == 1
    assert sealed_by() == {new}


#: Clients at once, and rounds that each of them makes in each phase.
CLIENTS, ROUNDS = 3, int(os.environ.get("ROTATION_ROUNDS", "1"))


class Traffic:
    """Clients that repeat requests and make new ones, until they are told to stop.

    What they hear has to be the first answer, always.
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        self.firsts: dict[str, Any] = {}
        self.rounds, self.replays = [0] * CLIENTS, [0] * CLIENTS
        self._stop = False
        self._moved = threading.Condition()
        self._numbers = itertools.count()

    def ask(self) -> None:
        key = f"key-{next(self._numbers)}"
        first = self.api.post("/things", {}, key)
        assert first.status_code == 201, first.content
        self.firsts[key] = first

    def ask_again(self, key: str) -> None:
        assert_replay(self.api.post("/things", {}, key), self.firsts[key])

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._client, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                self._stop = True
            for client in clients:
                client.result()

    def goes_round(self) -> None:
        """Wait until each client has gone round, begun from now on."""
        wanted = [done + 1 + ROUNDS for done in self.rounds]
        self._until(lambda: all(map(operator.ge, self.rounds, wanted)))

    def goes_on(self) -> None:
        """Wait for one more replay."""
        before = sum(self.replays)
        self._until(lambda: sum(self.replays) > before)

    def _until(self, reached: Callable[[], bool]) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: self._stop or reached(), PATIENCE)

    def _client(self, number: int) -> None:
        try:
            while not self._stop:
                self.ask()
                keys = list(self.firsts)
                for key in (*keys[:OLDEST], *keys[-NEWEST:]):
                    self.ask_again(key)
                    self._count(self.replays, number)
                self._count(self.rounds, number)
        finally:
            # One that failed ends the test.
            self._stop = True
            self._count(self.rounds, number)
            connections.close_all()

    def _count(self, done: list[int], number: int) -> None:
        with self._moved:
            done[number] += 1
            self._moved.notify_all()


#: What a client repeats in a round: answers of before the rotation, and others' of just now.
OLDEST, NEWEST = 4, 3


@beside_others
def test_every_replay_answers_while_the_key_is_rotated(
    api: Api, each_store: str, keys: Any, configure: Any, measured: Measure
) -> None:
    keys(OLD)
    traffic = Traffic(api)
    for _ in range(OLDEST):
        traffic.ask()
    leave_open(api, "open")
    # So that clients come between any two rows, and any two batches.
    configure(BATCH_SIZE=2)

    def between_rows(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and connection.vendor == "postgresql":
            traffic.goes_on()
        return execute(sql, *rest)

    with traffic.running():
        traffic.goes_round()
        keys(OLD, NEW)  # deployed everywhere: all can read what the first ones will write
        traffic.goes_round()
        new = keys(NEW, OLD)
        traffic.goes_round()
        before = sum(traffic.replays)
        with connection.execute_wrapper(between_rows):
            rotated = rotate_encryption()
        assert rotated.done > OLDEST
        during = sum(traffic.replays) - before
        assert rotate_encryption(dry_run=True).details == (
            f"all is under {new}: no other key is needed",
        )
        keys(NEW)
        traffic.goes_round()
    for key in traffic.firsts:
        traffic.ask_again(key)
    told = f"{during} while {rotated.done} rows were sealed anew, {sum(traffic.replays)} in all"
    measured(f"key rotated, {each_store}: replays, none wrong", told)
    assert len(views.calls) == len(traffic.firsts)
    assert sealed_by() == {new}
    assert api.post("/buy", {}, "open").status_code == 201
    assert (bought(), len(elsewhere.effects)) == (1, 1)
