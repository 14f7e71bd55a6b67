"""The admin's services without a browser: what the commands print, and how they exit."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from idempotency import overview, partitions, traffic
from idempotency.client.breaker import State as BreakerState
from idempotency.core.keys import log_digest
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent
from idempotency.overview.facts import Breaker, Dependencies, Dependency
from idempotency.testing import freeze_clock
from idempotency.traffic import MINUTES, Traffic
from tests.integration.portable.admin.rows import JSON, write_event, write_key

pytestmark = pytest.mark.django_db

#: The days around it have partitions.
NOW = datetime.now(UTC).replace(microsecond=0)
MINUTE = timedelta(minutes=1)
WHO_AND_WHY = ("--actor", "maria", "--reason", "the worker is gone")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A standing clock, and nothing of what other tests did."""
    monkeypatch.setattr(overview, "read_dependencies", Dependencies)
    monkeypatch.setattr(traffic, "read", lambda: None)
    monkeypatch.setattr(partitions, "days_ahead", lambda using: 14)
    with freeze_clock(NOW):
        yield


def run(name: str, *options: str) -> str:
    out = StringIO()
    call_command(f"idempotency_{name}", *options, stdout=out)
    return out.getvalue()


def refused(name: str, *options: str) -> tuple[int, str]:
    """The exit code and the message of a command that does not like what it finds."""
    out = StringIO()
    with pytest.raises(CommandError) as error:
        call_command(f"idempotency_{name}", *options, stdout=out)
    return error.value.returncode, str(error.value)


# Inspect


def test_a_key_is_told_as_its_page_tells_it() -> None:
    key = write_key(key="order-1", lease=-4 * MINUTE, age=9 * MINUTE, attempt=2)
    write_event(key, "takeover", attempt=2, at=NOW - 5 * MINUTE)
    text = run("inspect", "order-1")
    assert f"POST /v1/charges  order-1  (acct_acme, record {key.pk})" in text
    assert "processing, attempt 2, lease over for 0:04:00, stuck" in text
    assert "A retry with the same request runs it again, as attempt 3." in " ".join(text.split())
    assert f"{NOW - 9 * MINUTE:%Y-%m-%d %H:%M:%S} UTC  First request" in text
    assert f"{NOW - 5 * MINUTE:%Y-%m-%d %H:%M:%S} UTC  Taken over" in text
    assert "lease of attempt" in text


def test_an_answer_is_told_by_its_status_and_size_and_never_shown() -> None:
    answer = RecordedResponse(402, JSON, b'{"secret": "of a payer"}')
    write_key("succeeded", key="order-1", answer=answer)
    for options in ((), ("--json",)):
        text = run("inspect", "order-1", *options)
        assert "402" in text
        assert "payer" not in text


def test_a_key_is_found_by_account_and_by_digest_too() -> None:
    mine = write_key(key="order-1", tenant="acct_a")
    write_key(key="order-1", tenant="acct_b")
    assert run("inspect", "order-1").count("record ") == 2
    assert run("inspect", "acct_a", "order-1") == run("inspect", log_digest(bytes(mine.digest)))


def test_the_json_of_a_key_has_its_story() -> None:
    key = write_key("in_doubt", key="order-1", failure="timed out")
    found = json.loads(run("inspect", "order-1", "--json"))
    assert found["advice"] == ""
    [told] = found["keys"]
    assert told["record"] == key.pk
    assert told["state"] == "in_doubt"
    assert told["owner"] == str(key.owner)
    assert told["digest"] == bytes(key.digest).hex()
    assert told["created_at"] == f"{NOW - 3 * MINUTE:%Y-%m-%dT%H:%M:%SZ}"
    assert told["story"][0]["title"] == "First request"


def test_a_key_that_is_not_there_is_exit_code_one() -> None:
    assert refused("inspect", "no-such-key") == (1, "No key is found.")


# Status


def test_the_status_is_the_overview_in_words() -> None:
    write_key(age=90 * MINUTE)
    text = run("status")
    assert text.startswith(f"As of {NOW:%Y-%m-%d %H:%M:%S} UTC, database default\n")
    assert "processing 1 oldest 1:30:00 in_doubt 0 failed" in " ".join(text.split())
    assert "! " not in text


def test_what_needs_somebody_is_exit_code_one() -> None:
    write_key("in_doubt")
    assert refused("status") == (1, "1 of these need somebody.")


def test_the_status_tells_traffic_and_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"executed": [1] * MINUTES, "replayed": [0] * (MINUTES - 60) + [1] * 60}
    took = {"executed": {0.005: 99, float("inf"): 1}}
    shown = Traffic(NOW, NOW, counts, hour={}, day=took)
    monkeypatch.setattr(traffic, "read", lambda: shown)
    gateway = Dependency("gateway:a", (Breaker("charge", BreakerState.CLOSED, 0.0),), (7, 2))
    monkeypatch.setattr(overview, "read_dependencies", lambda: Dependencies((gateway,)))

    text = run("status")
    assert "retries, at least  50.0% in the last hour, 4.0% in a day" in text
    assert "executed took up to 0.005 s (p50), 0.005 s (p95), 0.005 s (p99)" in text
    assert "gateway:a: charge closed; 7 first attempts and 2 retries in a minute" in text

    found = json.loads(run("status", "--json"))
    assert found["traffic"]["series"]["executed"] == {"hour": 60, "day": 1440, "peak_minute": 1}
    assert found["dependencies"]["found"][0]["breakers"][0]["state"] == "closed"
    assert found["keys"]["states"][0]["number"] == 0


# Partitions


@pytest.mark.postgresql
def test_days_are_listed_with_what_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.now(UTC).date()
    text = run("partitions")
    assert f"  {today}" in text
    assert "14 days ahead" in text
    assert "once no live key needs it" in text
    found = json.loads(run("partitions", "--json"))
    assert found["days_ahead"] == 14
    assert str(today) in [day["day"] for day in found["days"]]


@pytest.mark.postgresql
def test_days_that_run_out_are_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "days_ahead", lambda using: 1)
    assert refused("partitions") == (1, "Only 1 days ahead: run create_partitions.")


def test_without_partitions_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "days_ahead", lambda using: None)
    assert run("partitions") == "There are no partitions.\n"
    assert json.loads(run("partitions", "--json"))["days_ahead"] is None


# Force-fail


def test_without_yes_it_only_says_what_it_would_do() -> None:
    key = write_key(key="order-1", lease=-MINUTE)
    text = run("force_fail", "order-1", "--free", *WHO_AND_WHY)
    assert "Its work was rolled back; nothing happened in this database." in text
    assert "the same request may run again. Nothing was written." in text
    assert f"--yes --owner {key.owner}" in text
    assert IdempotencyKey.objects.get().state == "processing"
    assert not KeyEvent.objects.exists()


@pytest.mark.parametrize(("outcome", "state"), [("--free", "failed"), ("--final", "succeeded")])
def test_with_yes_the_attempt_is_ended_by_name_and_with_a_reason(outcome: str, state: str) -> None:
    key = write_key(key="order-1")
    text = run("force_fail", "order-1", outcome, *WHO_AND_WHY, "--yes")
    assert "A worker may still run it. Its work will be rolled back." in text
    assert "Ended: " in text
    assert IdempotencyKey.objects.get().state == state
    event = KeyEvent.objects.get(key_id=key.pk)
    assert (event.kind, event.actor, event.reason) == (
        *("force_failed", "maria", "the worker is gone"),
    )


def test_an_operation_is_told_for_what_it_is() -> None:
    write_key("in_doubt", key="order-1", recovery_point="prepared", operation="gone")
    text = run("force_fail", "order-1", "--free", *WHO_AND_WHY)
    assert "An outside effect may have happened. Find out before you decide." in text
    assert "a retry leads into doubt again" in text
    found = json.loads(run("force_fail", "order-1", "--free", *WHO_AND_WHY, "--json"))
    assert (found["done"], found["risk"]) == (False, "effect")


def take_over(key: IdempotencyKey) -> None:
    IdempotencyKey.objects.filter(pk=key.pk).update(owner=uuid.uuid4(), attempt=2)


def test_an_attempt_that_is_not_the_one_shown_is_left_alone() -> None:
    key = write_key(key="order-1", lease=-MINUTE)
    take_over(key)
    options = ("order-1", "--final", *WHO_AND_WHY, "--yes", "--owner", str(key.owner))
    code, text = refused("force_fail", *options)
    assert code == 3
    assert "nothing was written" in text
    assert IdempotencyKey.objects.get().state == "processing"


def test_an_attempt_that_changes_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotency import operators

    key = write_key(key="order-1", lease=-MINUTE)
    force_fail = operators.force_fail

    def late(*args: Any, **kwargs: Any) -> bool:
        take_over(key)
        return force_fail(*args, **kwargs)

    monkeypatch.setattr(operators, "force_fail", late)
    assert refused("force_fail", "order-1", "--final", *WHO_AND_WHY, "--yes")[0] == 3
    assert IdempotencyKey.objects.get().attempt == 2


def test_a_service_without_a_view_that_takes_keys_has_keys_to_end(settings: Any) -> None:
    settings.ROOT_URLCONF = "idempotency.http.urls"
    write_key(key="order-1", context=None)
    run("force_fail", "order-1", "--final", *WHO_AND_WHY, "--yes")
    assert IdempotencyKey.objects.get().state == "succeeded"


def test_of_several_keys_one_has_to_be_chosen() -> None:
    mine = write_key(key="order-1", tenant="acct_a")
    yours = write_key(key="order-1", tenant="acct_b")
    code, text = refused("force_fail", "order-1", "--final", *WHO_AND_WHY, "--yes")
    assert code == 1
    assert f"record {mine.pk}" in text
    run("force_fail", "order-1", "--record", str(yours.pk), "--final", *WHO_AND_WHY, "--yes")
    mine.refresh_from_db()
    assert mine.state == "processing"


def test_what_is_settled_has_nothing_to_end() -> None:
    write_key("succeeded", key="order-1")
    assert refused("force_fail", "order-1", "--final", *WHO_AND_WHY, "--yes")[0] == 1


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--final",),
        ("--free", "--final", *WHO_AND_WHY),
        WHO_AND_WHY,
        ("--final", "--actor", "maria"),
        ("--final", "--actor", " ", "--reason", "why"),
        ("--final", "--actor", "maria", "--reason", "x" * 501),
        ("--final", *WHO_AND_WHY, "--owner", "nobody"),
    ],
)
def test_who_why_and_how_have_to_be_said(options: tuple[str, ...]) -> None:
    write_key(key="order-1")
    refused("force_fail", "order-1", *options)
    assert IdempotencyKey.objects.get().state == "processing"


def test_an_owner_is_named_by_its_token() -> None:
    key = write_key(key="order-1")
    other = ("--owner", str(uuid.uuid4()))
    assert refused("force_fail", "order-1", "--final", *WHO_AND_WHY, *other)[0] == 3
    run("force_fail", "order-1", "--final", *WHO_AND_WHY, "--yes", "--owner", str(key.owner))
    assert IdempotencyKey.objects.get().state == "succeeded"
