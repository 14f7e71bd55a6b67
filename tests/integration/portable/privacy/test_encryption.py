"""Encryption at rest: stored bodies, and what operations keep for their next step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.http import HttpResponse

from idempotency import encryption, maintenance
from idempotency.admin.answers import show_answer, show_json
from idempotency.approvals import stake_of
from idempotency.core.responses import stored_headers
from idempotency.inspection import facts_of, retry_now
from idempotency.models import IdempotencyKey, StoredResponse
from idempotency.stores import clock
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import (
    Api,
    assert_problem,
    assert_replay,
    key_of,
    statements,
)
from tests.integration.portable.elsewhere import bought, elsewhere, pending

pytestmark = pytest.mark.django_db

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
SECRET = b'{"iban":"DE02120300000000202051"}'


@pytest.fixture(autouse=True)
def fresh_service() -> Iterator[None]:
    other_side.reset()
    yield
    other_side.reset()


def answer_secret(api: Api, key: str) -> Any:
    views.behaviour = lambda request: HttpResponse(
        SECRET, status=201, headers={"Location": "/things/1", "Content-Type": "application/json"}
    )
    return api.post("/things", {}, key)


def at_rest() -> bytes:
    """All that is stored of answers and for operations."""
    answers = StoredResponse.objects.values_list("headers", "body")
    kept = IdempotencyKey.objects.values_list("context", flat=True)
    return repr([(headers, bytes(body)) for headers, body in answers] + list(kept)).encode()


# Bodies


def test_a_body_is_encrypted_at_rest_and_replayed_byte_for_byte(
    api: Api, each_store: str, configure: Any
) -> None:
    configure(ENCRYPTION_KEYS=[NEW])
    first = answer_secret(api, "k")
    assert first.content == SECRET
    assert b"DE02" not in at_rest()
    again = api.post("/things", {}, "k")
    assert_replay(again, first)
    assert again["Location"] == first["Location"]
    assert set(again.headers) == set(first.headers) | {"Idempotent-Replayed"}
    assert len(views.calls) == 1


def test_encryption_costs_no_statement(api: Api, each_store: str, configure: Any) -> None:
    configure(ENCRYPTION_KEYS=[NEW])
    api.post("/things", {}, "warm")
    with statements() as in_clear:
        configure(ENCRYPTION_KEYS=[])
        api.post("/things", {}, "a")
        api.post("/things", {}, "a")
    with statements() as encrypted:
        configure(ENCRYPTION_KEYS=[NEW])
        api.post("/things", {}, "b")
        api.post("/things", {}, "b")
    assert len(encrypted) == len(in_clear)


@pytest.mark.parametrize(
    ("before", "other", "after"),
    [
        ([], [None, NEW], [NEW]),
        ([OLD], [OLD, NEW], [NEW, OLD]),
        ([OLD], [OLD], [None, OLD]),
    ],
    ids=["switched on", "rotated", "switched off"],
)
def test_processes_before_and_after_a_change_replay_each_others_answers(
    api: Api, each_store: str, configure: Any, before: Any, other: Any, after: Any
) -> None:
    configure(ENCRYPTION_KEYS=before)
    first = answer_secret(api, "before")
    configure(ENCRYPTION_KEYS=after)
    assert_replay(api.post("/things", {}, "before"), first)
    answer_secret(api, "after")
    configure(ENCRYPTION_KEYS=other)
    assert_replay(api.post("/things", {}, "before"), first)
    assert_replay(api.post("/things", {}, "after"), first)


def test_none_in_first_place_writes_in_clear(api: Api, each_store: str, configure: Any) -> None:
    configure(ENCRYPTION_KEYS=[None, OLD])
    answer_secret(api, "k")
    assert b"DE02" in at_rest()


def test_a_key_that_was_removed_too_early_runs_nothing_and_says_so(
    api: Api, each_store: str, configure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configure(ENCRYPTION_KEYS=[OLD])
    first = answer_secret(api, "k")
    sealed_by = encryption.writing_key()
    for keys in ((NEW,), (), ("no key at all",)):
        configure(ENCRYPTION_KEYS=[*keys])
        caplog.clear()
        problem = assert_problem(api.post("/things", {}, "k"), 409, "response_not_stored", "never")
        assert problem["resource"] == "/things/1"
        errors = [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR]
        assert f"the answer of record {key_of('k').pk} cannot be read" in errors[0]
        assert "ENCRYPTION_KEYS" in errors[0]
        assert keys[:1] == ("no key at all",) or f"the key {sealed_by}" in errors[0]
    assert len(views.calls) == 1
    configure(ENCRYPTION_KEYS=[NEW, OLD])
    assert_replay(api.post("/things", {}, "k"), first)


def test_a_body_that_was_changed_is_not_replayed(api: Api, each_store: str, configure: Any) -> None:
    configure(ENCRYPTION_KEYS=[NEW])
    answer_secret(api, "k")
    StoredResponse.objects.update(body=Fernet(OLD).encrypt(b"{}"))
    assert_problem(api.post("/things", {}, "k"), 409, "response_not_stored", "never")
    assert len(views.calls) == 1


def test_without_a_usable_key_nothing_is_kept_in_clear(
    api: Api, each_store: str, configure: Any
) -> None:
    configure(ENCRYPTION_KEYS=["no key at all"])
    assert api.post("/things", {}, "k").status_code == 500
    assert (views.effects(), key_of("k").state) == (0, "failed")
    assert not StoredResponse.objects.exists()


def test_no_handler_can_pass_its_answer_off_as_encrypted(api: Api) -> None:
    assert stored_headers([(":sealed", "x"), ("ETag", '"1"')]) == (("ETag", '"1"'),)
    views.behaviour = lambda request: HttpResponse(b"clear", headers={":sealed": "0badc0de"})
    api.post("/things", {}, "k")
    assert api.post("/things", {}, "k").content == b"clear"


def test_the_admin_shows_an_encrypted_body_opened_and_masked(
    api: Api, each_store: str, configure: Any
) -> None:
    configure(ENCRYPTION_KEYS=[NEW])
    answer_secret(api, "k")
    stored = StoredResponse.objects.get()
    shown = show_answer(stored, may_see_body=True)
    assert shown.text == '{\n  "iban": "[hidden]"\n}'
    assert [it.name for it in shown.headers] == ["Location", "Content-Type", "Allow"]
    configure(ENCRYPTION_KEYS=[OLD])
    shown = show_answer(stored, may_see_body=True)
    assert shown.text is None
    assert "which is not in IDEMPOTENCY['ENCRYPTION_KEYS']" in shown.note
    row: Any = IdempotencyKey.objects.annotate(now=clock.now()).get()
    assert "409 response_not_stored" in retry_now(facts_of(row, row.now, stored))


# What operations keep


def test_what_an_operation_keeps_is_encrypted_and_resumed(
    api: Api, each_store: str, configure: Any
) -> None:
    configure(ENCRYPTION_KEYS=[OLD])
    elsewhere.script = [elsewhere.lost]
    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending")
    kept: Any = key_of("k").context
    assert (kept["operation"], kept["prepared"]) == ("tests.buy", 1)
    assert b"intent" not in at_rest()
    assert '"intent": ' in show_json(kept)
    configure(ENCRYPTION_KEYS=[NEW, OLD])
    assert api.post("/buy", {}, "k").status_code == 201
    assert (bought(), pending(), len(elsewhere.effects)) == (1, 0, 1)


def test_an_operation_whose_key_is_gone_waits_for_it(
    api: Api, each_store: str, configure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configure(ENCRYPTION_KEYS=[OLD])
    elsewhere.script = [elsewhere.lost]
    api.post("/buy", {}, "k")
    configure(ENCRYPTION_KEYS=[NEW])
    assert_problem(api.post("/buy", {}, "k"), 503, "outcome_pending", "same_key")
    assert maintenance.resume_operations().failed == 1
    assert "cannot be read: It was encrypted by the key" in caplog.text
    assert "cannot be read" in show_json(key_of("k").context)
    assert len(elsewhere.asked) == 1, "nobody may call with what he cannot read"
    configure(ENCRYPTION_KEYS=[NEW, OLD])
    assert api.post("/buy", {}, "k").status_code == 201
    assert (bought(), len(elsewhere.effects)) == (1, 1)


def test_the_amount_at_stake_is_read_for_who_decides(configure: Any) -> None:
    from tests.integration.portable.doubts.payouts import Payout

    configure(ENCRYPTION_KEYS=[NEW])
    kept = {
        "operation": Payout.name,
        "context": encryption.seal_json({"minor": 5000, "currency": "EUR"}),
    }
    key = IdempotencyKey(recovery_point="prepared", context=kept)
    amount = stake_of(key).amount
    assert amount is not None
    assert amount.minor == 5000
