"""The adapter against real sockets: the simulated gateway, and peers that misbehave by script."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.base import Gateway
from payments.gateways.calling import BACKOFF_BASE
from payments.gateways.choice import get_gateway
from payments.gateways.http import HttpGateway
from tests.integration.gateways.adapter import Connect
from tests.integration.gateways.peers import (
    Counter,
)
from tests.plugins.gateway import PATIENCE, ROOT, GatewayProcess, until

# Each source


@pytest.mark.parametrize(
    ("source", "outcome", "waits", "charges"),
    [
        ("tok_visa", Done, 0, 1),
        ("tok_slow", Done, 0, 1),
        ("tok_declined", Refused, 0, 0),
        ("tok_answer_lost", Done, 1, 1),
        ("tok_error_before", Done, 2, 1),
        ("tok_error_after", Done, 1, 1),
        ("tok_busy", Done, 2, 1),
        ("tok_down", NotSent, 2, 0),
        ("tok_unheard_of", Refused, 0, 0),
    ],
)
def test_three_attempts_end_every_source_with_at_most_one_charge(
    gateway: GatewayProcess,
    connect: Connect,
    source: str,
    outcome: type[Any],
    waits: int,
    charges: int,
) -> None:
    client = connect(gateway.url)
    assert isinstance(client.charge(source), outcome)
    assert len(client.pauses) == waits
    assert len(gateway.ledger()) == charges


@pytest.mark.parametrize(
    ("source", "outcome", "charges"),
    [
        ("tok_answer_lost", Unknown, 1),
        ("tok_error_before", Unknown, 0),
        ("tok_error_after", Unknown, 1),
        ("tok_busy", NotSent, 0),
        ("tok_down", NotSent, 0),
    ],
)
def test_one_attempt_says_what_it_knows_and_no_more(
    gateway: GatewayProcess, connect: Connect, source: str, outcome: type[Any], charges: int
) -> None:
    assert isinstance(connect(gateway.url, attempts=1).charge(source), outcome)
    assert len(gateway.ledger()) == charges


def test_done_holds_the_gateways_record_and_sends_everything_asked(
    gateway: GatewayProcess, connect: Connect
) -> None:
    outcome = connect(gateway.url).charge(key="k1", amount=123)
    assert isinstance(outcome, Done)
    (entry,) = gateway.ledger()
    assert outcome.result == entry
    assert (entry["amount"], entry["currency"]) == (123, "EUR")
    assert (entry["reference"], entry["idempotency_key"]) == ("ch_1", "k1")


def test_decline_and_misuse_are_told_apart_by_their_status(
    gateway: GatewayProcess, connect: Connect
) -> None:
    declined = connect(gateway.url).charge("tok_declined")
    misused = connect(gateway.url).charge("tok_unheard_of", key="k2")
    assert isinstance(declined, Refused)
    assert isinstance(misused, Refused)
    assert (declined.result["status"], declined.result["code"]) == (402, "card_declined")
    assert (misused.result["status"], misused.result["code"]) == (400, "invalid_request")


def test_retry_after_is_a_minimum_with_a_little_jitter(
    gateway: GatewayProcess, connect: Connect
) -> None:
    client = connect(gateway.url)
    client.charge("tok_busy")
    assert all(1 <= pause <= 1 + BACKOFF_BASE for pause in client.pauses)


def test_attempt_that_times_out_is_unknown_and_the_same_key_finds_the_charge(
    gateway: GatewayProcess, connect: Connect
) -> None:
    assert isinstance(connect(gateway.url, timeout=0.3, attempts=1).charge("tok_slow"), Unknown)
    until(gateway.ledger)
    # Less than the charge took: an answer that is known comes at once.
    outcome = connect(gateway.url, timeout=2.0, attempts=1).charge("tok_slow")
    assert isinstance(outcome, Done)
    assert [entry["id"] for entry in gateway.ledger()] == [outcome.result["id"]]


def test_key_used_for_another_amount_is_unknown_not_refused(
    gateway: GatewayProcess, connect: Connect
) -> None:
    client = connect(gateway.url)
    client.charge(amount=1)
    assert isinstance(client.charge(amount=2), Unknown)
    assert client.pauses == []


def test_refund_is_done_once_and_refused_beyond_the_charge(
    gateway: GatewayProcess, connect: Connect
) -> None:
    adapter = connect(gateway.url).adapter
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    outcomes = [
        adapter.refund(charge=charge, amount=60, reference="re_1", key=key)
        for key in ("k2", "k2", "k3")
    ]
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[0], Done)
    assert isinstance(outcomes[2], Refused)
    assert outcomes[2].result["code"] == "refund_exceeds_charge"
    assert [entry["kind"] for entry in gateway.ledger()] == ["charge", "refund"]


def test_gateway_that_is_gone_was_sent_nothing(gateway: GatewayProcess, connect: Connect) -> None:
    client = connect(gateway.url)
    gateway.kill()
    assert isinstance(client.charge(), NotSent)
    assert len(client.pauses) == 2


def test_gateway_that_comes_back_between_attempts_charges_once(
    gateway: GatewayProcess, connect: Connect
) -> None:
    gateway.kill()
    client = connect(gateway.url, pause=lambda _: gateway.start())
    assert isinstance(client.charge(), Done)
    assert len(gateway.ledger()) == 1


# A gateway that does not dedupe


@pytest.mark.parametrize("source", ["tok_answer_lost", "tok_error_after"])
def test_attempt_that_may_have_charged_is_not_repeated_without_dedupe(
    gateway: GatewayProcess, connect: Connect, source: str
) -> None:
    gateway.control(dedupe=False)
    assert isinstance(connect(gateway.url, dedupes=False).charge(source), Unknown)
    assert len(gateway.ledger()) == 1


def test_attempt_that_was_not_processed_is_repeated_without_dedupe(
    gateway: GatewayProcess, connect: Connect
) -> None:
    gateway.control(dedupe=False)
    assert isinstance(connect(gateway.url, dedupes=False).charge("tok_busy"), Done)
    assert len(gateway.ledger()) == 1


# Connections


def test_connection_is_reused(counter: Counter, connect: Connect) -> None:
    client = connect(counter.url)
    assert all(isinstance(client.charge(key=str(number)), Done) for number in range(5))
    assert counter.connections == 1
    client.adapter.close()


def test_threads_share_one_adapter(gateway: GatewayProcess, connect: Connect) -> None:
    client = connect(gateway.url)
    barrier = threading.Barrier(20)

    def charge(number: int) -> Outcome:
        barrier.wait(PATIENCE)
        return client.charge(key=str(number))

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(charge, range(20)))
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    assert len(gateway.ledger()) == 20
    assert client.adapter.room.in_use == 0


def test_closed_adapter_opens_anew(counter: Counter, connect: Connect) -> None:
    client = connect(counter.url)
    client.charge()
    client.adapter.close()
    assert isinstance(client.charge(), Done)
    assert counter.connections == 2
    client.adapter.close()


def run_program(program: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has ``charge``, an adapter's method, in a process of its own."""
    preamble = f"""
import os, sys
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["idempotency"], SECRET_KEY="x", PAYMENTS_GATEWAY={{"URL": {url!r}}}
)
django.setup()
from idempotency.operations import Done
from payments.gateways.choice import get_gateway
def charge(key):
    outcome = get_gateway().charge(
        amount=1, currency="EUR", source="tok_visa", reference="r", key=key
    )
    return isinstance(outcome, Done)
"""
    command = [sys.executable, "-X", "dev", "-c", preamble + program]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_forked_process_never_shares_a_connection(counter: Counter) -> None:
    program = """
good = charge("before")
child = os.fork()
if child == 0:
    sys.exit(0 if charge("child") else 1)
good &= os.waitpid(child, 0)[1] == 0
good &= charge("after")
print(good)
"""
    run = run_program(program, counter.url)
    assert (run.stdout.strip(), run.returncode) == ("True", 0), run.stderr
    assert counter.connections == 2  # the parent's served it before and after


def test_connections_are_closed_when_the_process_ends(counter: Counter) -> None:
    run = run_program("print(charge('k1'))", counter.url)
    assert run.stdout.strip() == "True", run.stderr
    assert "ResourceWarning" not in run.stderr


# The factory


def test_gateway_comes_from_the_settings_and_is_kept(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "TIMEOUT": 2.0, "ATTEMPTS": 4}
    gateway: Gateway = get_gateway()
    assert isinstance(gateway, HttpGateway)
    assert (gateway.url, gateway.timeout, gateway.attempts) == ("http://127.0.0.1:1", 2.0, 4)
    assert gateway.dedupes
    assert get_gateway() is gateway
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "DEDUPES": False}
    other = get_gateway()
    assert other is not gateway
    assert not other.dedupes


def test_threads_that_ask_first_get_one_gateway(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "TIMEOUT": 1.25}
    both_make_one = threading.Barrier(2)

    class Slow(HttpGateway):
        def __init__(self, *args: Any, **options: Any) -> None:
            with suppress(threading.BrokenBarrierError):
                both_make_one.wait(0.5)
            super().__init__(*args, **options)

    monkeypatch.setattr("payments.gateways.http.HttpGateway", Slow)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: get_gateway(), range(2))
    assert one is other


@pytest.mark.parametrize("given", [{}, {"URL": ""}, {"URL": "http://127.0.0.1:1", "RETRIES": 3}])
def test_settings_without_a_url_or_with_an_unknown_name_are_refused(
    settings: Any, given: dict[str, Any]
) -> None:
    settings.PAYMENTS_GATEWAY = given
    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_GATEWAY"):
        get_gateway()
