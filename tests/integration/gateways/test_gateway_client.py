"""What the client half adds to the adapter: breaker, budget, bulkhead, deadline, second copies."""

from __future__ import annotations

import os
import socket

import pytest

from idempotency.client import (
    BreakerOpen,
    BreakerPolicy,
    BudgetPolicy,
    Deadline,
    HedgePolicy,
    State,
)
from idempotency.http.deadlines import governing
from idempotency.operations import Done, NotSent, Refused, Unknown
from payments.gateways.base import Gateway, Task
from tests.integration.gateways.adapter import Client, Connect
from tests.integration.gateways.peers import BUSY, Play, answers, charges, drops, is_down
from tests.plugins.gateway import GatewayProcess, until

#: Calls that the breaker must have seen.
MINIMUM = 20
down = answers(503, BUSY)


def is_open(gateway: Gateway, task: Task = "charge") -> bool:
    try:
        with gateway.room_for(task):
            return False
    except BreakerOpen:
        return True


def fail(client: Client, times: int = MINIMUM) -> None:
    for number in range(times):
        client.charge("tok_down", key=f"down-{number}")


# The breaker


def test_gateway_that_fails_is_not_asked_any_more(
    gateway: GatewayProcess, connect: Connect
) -> None:
    client = connect(gateway.url, attempts=1)
    fail(client, MINIMUM - 1)
    assert not is_open(client.adapter)
    fail(client, 1)
    assert is_open(client.adapter)
    outcome = client.charge()
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after is not None
    assert 0 < outcome.retry_after <= 6
    assert gateway.ledger() == []


def test_charges_that_fail_do_not_stop_refunds(gateway: GatewayProcess, connect: Connect) -> None:
    client = connect(gateway.url, attempts=1)
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    fail(client)
    assert is_open(client.adapter)
    assert not is_open(client.adapter, "refund")
    refund = client.adapter.refund(charge=charge, amount=60, reference="re_1", key="k2")
    assert isinstance(refund, Done)


def test_breaker_that_opens_after_a_lost_answer_leaves_it_unknown(
    play: Play, connect: Connect
) -> None:
    script = play(*[down] * (MINIMUM - 1), drops)
    client = connect(script.url, budget=BudgetPolicy(floor=MINIMUM))
    fail(client, 6)
    # Its second attempt is the twentieth failure; the third is refused and says nothing new.
    assert isinstance(client.charge(), Unknown)
    assert len(script.requests) == MINIMUM
    assert is_open(client.adapter)


@pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])
def test_gateway_that_is_back_is_found_and_trusted_after_three_probes(
    gateway: GatewayProcess, connect: Connect, shared: bool
) -> None:
    policy = BreakerPolicy(open_for=0.05, open_jitter=0)
    redis_url = os.environ["REDIS_URL"] if shared else None
    client = connect(gateway.url, attempts=1, breaker=policy, redis_url=redis_url)
    breaker = client.adapter._breakers.get(client.adapter.name, "charge")
    fail(client)
    assert breaker.state is State.OPEN
    until(lambda: not is_open(client.adapter))
    # Looking took a probe's permit and gave it back: any number of looks leaves room for a probe.
    assert not any(is_open(client.adapter) for _ in range(10))
    for number in range(3):
        assert breaker.state is State.HALF_OPEN
        assert isinstance(client.charge(key=str(number)), Done)
    assert breaker.state is State.CLOSED


def test_declines_say_nothing_about_the_gateways_health(
    gateway: GatewayProcess, connect: Connect
) -> None:
    client = connect(gateway.url)
    outcomes = [client.charge("tok_declined", key=str(number)) for number in range(2 * MINIMUM)]
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    assert not is_open(client.adapter)


def test_success_that_cannot_be_read_is_a_failure(play: Play, connect: Connect) -> None:
    client = connect(play(*[answers(201, b"{")] * MINIMUM).url, attempts=1)
    outcomes = [client.charge(key=str(number)) for number in range(MINIMUM)]
    assert all(isinstance(outcome, Unknown) for outcome in outcomes)
    assert is_open(client.adapter)


def test_breaker_and_budget_are_those_of_every_process_with_the_same_redis(
    connect: Connect, gateway: GatewayProcess
) -> None:
    budget = BudgetPolicy(ratio=0, floor=1)
    shared = {"redis_url": os.environ["REDIS_URL"], "budget": budget}
    one, other = connect(gateway.url, **shared), connect(gateway.url, **shared)
    alone = connect(gateway.url, budget=budget)
    fail(one, 1)
    fail(other, MINIMUM)
    # The one retry that there is was the first call's.
    assert (len(one.pauses), len(other.pauses)) == (1, 0)
    assert is_open(one.adapter)
    assert not is_open(alone.adapter)


# The budget


def test_retries_end_with_the_budget_and_the_last_word_stands(play: Play, connect: Connect) -> None:
    script = play(*[is_down] * 4)
    client = connect(script.url, budget=BudgetPolicy(ratio=0, floor=2))
    assert isinstance(client.charge(key="k1"), NotSent)
    assert isinstance(client.charge(key="k2"), NotSent)
    assert len(script.requests) == 4
    assert len(client.pauses) == 2


# The bulkhead


def test_call_beyond_the_room_is_not_sent(play: Play, connect: Connect) -> None:
    script = play(charges)
    client = connect(script.url, calls=1)
    with client.adapter.room_for("charge"):
        outcome = client.charge()
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after == 1
    assert script.requests == []
    assert isinstance(client.charge(), Done)


# The deadline


def test_deadline_of_the_request_goes_along_and_bounds_the_call(
    gateway: GatewayProcess, connect: Connect
) -> None:
    client = connect(gateway.url)
    # What a process does once, before it first sends, is no part of the second that follows.
    assert isinstance(client.charge("tok_declined", key="first"), Refused)
    with governing(Deadline.after(1.0)):
        outcome = client.charge("tok_slow")  # takes three seconds, of five that an attempt has
    assert outcome == Unknown("no answer from the gateway (ReadTimeout)")
    assert client.pauses == []
    assert isinstance(client.charge("tok_slow"), Done)
    assert len(gateway.ledger()) == 1


def test_gateway_is_told_less_time_than_the_request_has(play: Play, connect: Connect) -> None:
    script = play(charges)
    with governing(Deadline.after(2.0)):
        connect(script.url).charge()
    head = script.requests[0].lower().partition(b"\r\n\r\n")[0]
    (told,) = (
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.startswith(b"x-request-deadline-ms:")
    )
    assert 0 < told < 2000


def test_no_time_left_is_unknown_and_nothing_is_sent(play: Play, connect: Connect) -> None:
    script = play(charges)
    with governing(Deadline.after(0)):
        outcome = connect(script.url).charge()
    assert outcome == Unknown("no time was left for the call")
    assert script.requests == []


#: Few attempts of a length that a busy machine has: each must have connected before it ends.
PATIENT = BreakerPolicy(minimum_calls=4)


def test_callers_in_a_hurry_do_not_open_the_breaker_for_the_others(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = connect(url, timeout=5, attempts=1, breaker=PATIENT)
        for number in range(4):
            with governing(Deadline.after(0.4)):
                assert isinstance(client.charge(key=str(number)), Unknown)
        assert not is_open(client.adapter)


def test_attempts_that_had_their_whole_time_open_it(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = connect(url, timeout=0.4, attempts=1, breaker=PATIENT)
        for number in range(4):
            assert isinstance(client.charge(key=str(number)), Unknown)
        assert is_open(client.adapter)


# Second copies


def test_two_copies_of_a_charge_charge_once(
    gateway: GatewayProcess, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(
        gateway.url, hedging=HedgePolicy(minimum=1), budget=BudgetPolicy(ratio=1.0, floor=0)
    )
    client.charge(key="k1")
    with caplog.at_level("DEBUG", "payments.gateways"):
        outcome = client.charge("tok_slow", key="k2")
    assert isinstance(outcome, Done)
    assert [record.__dict__["hedged"] for record in caplog.records] == [True]
    assert [entry["idempotency_key"] for entry in gateway.ledger()] == ["k1", "k2"]
