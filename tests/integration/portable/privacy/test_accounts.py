"""The data of one account: handed out, and erased."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from idempotency import privacy
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, Proposal, StoredResponse
from idempotency.privacy import OpenKey, erase, export
from idempotency.stores import get_store, ranges
from tests.integration.portable.admin.rows import write_event
from tests.integration.portable.api import Api, assert_problem, background
from tests.integration.portable.conformance.harness import TTL, Key
from tests.integration.portable.elsewhere import elsewhere, reset

pytestmark = pytest.mark.django_db

CARD = b'{"id":"ch_1","card":{"number":"4242","brand":"visa"}}'
ANSWER = RecordedResponse(201, (("X-Api-Key", "hunter2"), ("Location", "/ch_1")), CARD)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch, configure: Any) -> None:
    """More than one step and one batch for a few rows."""
    monkeypatch.setattr(ranges, "STEP", 3)
    configure(BATCH_SIZE=2)


def named(name: str, tenant: str = "acme") -> Key:
    return Key(get_store(), name, tenant)


def pruned(name: str, tenant: str = "acme") -> int:
    """An answer of another day, whose key was pruned; its record."""
    lease = named(name, tenant).completed(ANSWER)
    write_event(named(name, tenant).row, "takeover")
    tomorrow = lease.response_day + timedelta(days=1)
    StoredResponse.objects.filter(pk=lease.key_id).update(day=tomorrow)
    IdempotencyKey.objects.filter(pk=lease.key_id).delete()
    return lease.key_id


def command(name: str, *options: str) -> str:
    out = StringIO()
    call_command(f"idempotency_{name}", *options, stdout=out)
    return out.getvalue()


def left() -> dict[str, list[int]]:
    """The records that are left, in each table."""
    return {
        "keys": sorted(IdempotencyKey.objects.values_list("pk", flat=True)),
        "answers": sorted(StoredResponse.objects.values_list("pk", flat=True)),
        "story": sorted(
            {*KeyEvent.objects.values_list("key_id", flat=True)}
            | {*Proposal.objects.values_list("key_id", flat=True)}
        ),
    }


# Handing out


def test_all_that_is_stored_of_an_account_is_handed_out_and_nothing_of_others() -> None:
    mine = [named(f"k{number}").completed(ANSWER).key_id for number in range(5)]
    write_event(named("k0").row, "takeover", data={"token": "hunter2", "to": "b"})
    named("theirs", "globex").completed(ANSWER)
    gone, _ = pruned("gone"), pruned("theirs too", "globex")

    rows = list(export("acme"))

    assert [it["record"] for it in rows if it["type"] == "key"] == mine
    assert sorted(it["record"] for it in rows if it["type"] == "response") == [*mine, gone]
    (event,) = [it for it in rows if it["type"] == "event"]
    assert (event["record"], event["data"]) == (mine[0], {"token": "[hidden]", "to": "b"})
    assert {it["tenant"] for it in rows if "tenant" in it} == {"acme"}


def test_what_is_handed_out_is_masked_unless_it_is_to_be_raw() -> None:
    named("k").completed(ANSWER)

    (_, masked), (_, raw) = export("acme"), export("acme", raw=True)

    assert json.loads(masked["body"])["card"] == {"number": "[hidden]", "brand": "visa"}
    assert masked["headers"] == [["X-Api-Key", "[hidden]"], ["Location", "/ch_1"]]
    assert raw["body"] == CARD.decode()
    assert raw["headers"][0] == ["X-Api-Key", "hunter2"]


def test_bytes_that_are_no_text_are_handed_out_raw_only() -> None:
    named("k").completed(RecordedResponse(200, (), b"\xff\x00"))

    (_, masked), (_, raw) = export("acme"), export("acme", raw=True)

    assert (masked["body_base64"], raw["body_base64"]) == ("[hidden]", "/wA=")


def test_what_is_encrypted_is_handed_out_opened(api: Api, configure: Any) -> None:
    configure(ENCRYPTION_KEYS=[Fernet.generate_key()])
    reset()
    elsewhere.script = [elsewhere.lost]
    api.post("/buy", {}, "open")
    api.post("/things", {}, "k")

    key, _, event, response = export("anonymous")

    assert "intent" in key["kept"]["context"]
    assert (event["kind"], json.loads(response["body"]).keys()) == ("suspended", {"id"})
    configure(ENCRYPTION_KEYS=[Fernet.generate_key()])
    key, _, _, response = export("anonymous")
    assert "which is not in IDEMPOTENCY['ENCRYPTION_KEYS']" in key["kept"]["unreadable"]
    assert "body" not in response
    assert "which is not in IDEMPOTENCY['ENCRYPTION_KEYS']" in response["unreadable"]


def test_the_command_prints_a_json_object_a_line() -> None:
    named("k").completed(ANSWER)
    rows = [json.loads(line) for line in command("export", "acme").splitlines()]
    assert [it["type"] for it in rows] == ["key", "response"]
    assert "4242" not in command("export", "acme")
    assert "4242" in command("export", "acme", "--raw")


# Erasing


def test_settled_keys_go_with_their_answers_and_their_story() -> None:
    for number in range(5):
        named(f"k{number}").completed(ANSWER)
        write_event(named(f"k{number}").row, "takeover")
    failed = named("failed")
    failed.store.fail(failed.won(), "boom", timedelta(0))
    pruned("gone")
    named("theirs", "globex").completed(ANSWER)
    write_event(named("theirs", "globex").row, "takeover")
    theirs = named("theirs", "globex").row.pk
    also_theirs = pruned("theirs too", "globex")

    rehearsed = erase("acme", dry_run=True)
    assert (rehearsed.keys, rehearsed.remembered, rehearsed.responses) == (6, 5, 6)
    assert len(left()["keys"]) == 7
    erasure = erase("acme")

    assert (erasure.keys, erasure.remembered, erasure.open) == (6, 5, [])
    assert (erasure.responses, erasure.events) == (6, 6)
    assert left() == {
        "keys": [theirs],
        "answers": [theirs, also_theirs],
        "story": [theirs, also_theirs],
    }
    assert list(export("acme")) == []


def test_open_keys_stay_whole_and_are_listed() -> None:
    running, doubtful = named("running"), named("doubtful")
    running.won()
    doubtful.store.doubt(doubtful.prepared(), "nobody knows")
    before = left()

    erasure = erase("acme")

    listed = [(it.record, it.state) for it in erasure.open]
    assert listed == [(running.row.pk, "processing"), (doubtful.row.pk, "in_doubt")]
    assert left() == before
    assert doubtful.row.context == {"charge": 7}


def test_a_retry_of_an_erased_key_runs_again_and_after_its_body_alone_it_does_not(
    api: Api, each_store: str
) -> None:
    first = api.post("/things", {}, "k")
    assert erase("anonymous", bodies_only=True).responses == 1
    problem = assert_problem(api.post("/things", {}, "k"), 409, "response_not_stored", "never")
    assert problem["resource"] == first["Location"]
    assert erase("anonymous", bodies_only=True).responses == 0

    erase("anonymous")
    again = api.post("/things", {}, "k")
    assert (again.status_code, again["Location"] == first["Location"]) == (201, False)


def test_bodies_are_erased_of_answers_whose_key_was_pruned_too() -> None:
    kept, gone = named("k").completed(ANSWER).key_id, pruned("gone")
    theirs = named("theirs", "globex").completed(ANSWER).key_id

    assert erase("acme", bodies_only=True, dry_run=True).responses == 2
    assert erase("acme", bodies_only=True).responses == 2

    bodies = dict(StoredResponse.objects.values_list("pk", "body"))
    assert {pk for pk, body in bodies.items() if body is None} == {kept, gone}
    assert bytes(bodies[theirs]) == CARD
    assert left()["keys"] == [kept, theirs]


def test_the_answer_of_a_key_that_ended_meanwhile_stays_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named("k").completed(ANSWER)
    late = named("late")
    lease = late.won()
    answers_by_day = privacy.answers_by_day

    def complete_first(using: str) -> Any:
        late.store.complete(lease, ANSWER, TTL)
        return answers_by_day(using)

    monkeypatch.setattr(privacy, "answers_by_day", complete_first)
    erasure = erase("acme")

    assert [it.record for it in erasure.open] == [lease.key_id]
    assert (erasure.keys, erasure.responses) == (1, 1)
    assert left()["answers"] == [lease.key_id]


@pytest.mark.postgresql  # SQLite has one writer
@pytest.mark.django_db(transaction=True)
def test_a_failed_key_that_is_claimed_meanwhile_is_left_to_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = named("k")
    key.store.fail(key.won(), "boom", TTL)
    batches = privacy._batches

    def claim_first(rows: Any) -> Any:
        found = list(batches(rows))
        if rows.model is IdempotencyKey:
            with background(key.won) as claimed:
                claimed.result()
        return found

    monkeypatch.setattr(privacy, "_batches", claim_first)
    erasure = erase("acme")

    assert (erasure.keys, erasure.open) == (
        0,
        [OpenKey(key.row.pk, key.row.route, "processing")],
    )


def test_the_command_does_nothing_without_yes_and_says_what_it_means() -> None:
    named("k").completed(ANSWER)
    named("running").won()

    said = command("erase", "acme")

    assert "Would be erased: 1 keys, 1 responses and 0 events of acme." in said
    assert "1 of the keys had not expired: a retry with one of them runs again" in said
    assert "Left, for it is open: record" in said
    assert "Nothing was erased. Repeat with --yes" in said
    assert len(left()["keys"]) == 2
    assert json.loads(command("erase", "acme", "--bodies", "--json"))["erased"] is False
    out = StringIO()
    with pytest.raises(CommandError, match="1 keys are open: settle them") as caught:
        call_command("idempotency_erase", "acme", "--yes", stdout=out)
    assert caught.value.returncode == 1
    assert "Erased: 1 keys, 1 responses" in out.getvalue()
    assert len(left()["keys"]) == 1
    named("k").completed(ANSWER)
    with pytest.raises(CommandError):
        call_command("idempotency_erase", "acme", "--bodies", "--yes", stdout=out)
    assert "Erased: the bodies of 1 responses of acme." in out.getvalue()
    assert command("erase", "globex", "--yes").startswith("Erased: 0 keys, 0 responses")
