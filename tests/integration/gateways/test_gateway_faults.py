"""The adapter against peers that misbehave by script."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from idempotency.client import BudgetPolicy
from idempotency.operations import Done, NotSent, Refused, Unknown
from payments.gateways.readings import RETRY_AFTER_LIMIT
from tests.integration.gateways.adapter import Connect
from tests.integration.gateways.peers import (
    BUSY,
    CHARGED,
    Act,
    Play,
    answers,
    charges,
    drips,
    drops,
    is_down,
    resets,
)


@pytest.mark.parametrize(
    "loses",
    [drops, resets, answers(201, b"{"), answers(502, b"")],
    ids=["dropped", "reset", "broken", "bad gateway"],
)
def test_lost_answer_then_a_refused_connection_stays_unknown(
    play: Play, connect: Connect, loses: Act
) -> None:
    script = play(loses)
    client = connect(script.url)
    assert isinstance(client.charge(), Unknown)
    assert (len(script.requests), len(client.pauses)) == (1, 2)


@pytest.mark.parametrize("loses", [drops, answers(500, b"")], ids=["dropped", "error"])
def test_lost_answer_then_nothing_processed_stays_unknown(
    play: Play, connect: Connect, loses: Act
) -> None:
    script = play(loses, is_down, is_down)
    assert isinstance(connect(script.url).charge(), Unknown)
    assert len(script.requests) == 3


def test_nothing_processed_then_a_lost_answer_is_unknown(play: Play, connect: Connect) -> None:
    script = play(is_down, is_down, drops)
    assert isinstance(connect(script.url).charge(), Unknown)
    assert len(script.requests) == 3


def test_lost_answer_then_a_final_one_is_final(play: Play, connect: Connect) -> None:
    assert isinstance(connect(play(drops, charges).url).charge(), Done)
    declined = answers(402, {"error": {"code": "card_declined", "message": ""}})
    assert isinstance(connect(play(drops, declined).url).charge(), Refused)


def test_broken_answer_is_asked_for_again(play: Play, connect: Connect) -> None:
    broken = (answers(201, b"{"), answers(402, b"<html>"))
    assert isinstance(connect(play(*broken, charges).url).charge(), Done)


def test_answer_cut_short_is_unknown(play: Play, connect: Connect) -> None:
    def cuts(peer: socket.socket) -> None:
        peer.sendall(b'HTTP/1.1 201 Created\r\nContent-Length: 999\r\n\r\n{"id": "gch_1"}')

    assert isinstance(connect(play(cuts).url, attempts=1).charge(), Unknown)


def test_endless_answer_is_unknown(play: Play, connect: Connect) -> None:
    def floods(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 201 Created\r\n\r\n")
        try:
            for _ in range(10_000):
                peer.sendall(b" " * 65536)
            peer.sendall(json.dumps(CHARGED).encode())
        except ConnectionError:  # the other side gave up, as it should
            return

    assert isinstance(connect(play(floods).url, attempts=1).charge(), Unknown)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 201 Created\r\nContent-Length: 999\r\nX-Padding: " + b"x" * 2000,
        b"HTTP/1.1 201 Created\r\n\r\n" + json.dumps(CHARGED).encode().ljust(2000),
    ],
    ids=["headers", "body"],
)
def test_timeout_bounds_the_attempt_and_not_each_read(
    play: Play, connect: Connect, raw: bytes
) -> None:
    script = play(drips(raw))
    outcome = connect(script.url, timeout=0.5, attempts=1).charge()
    # Bounding each read would wait for the end of it: a closed connection, or a success.
    assert outcome == Unknown("no answer from the gateway (ReadTimeout)")


@pytest.mark.skipif(sys.platform != "linux", reason="fills the queue of a listener as Linux has it")
def test_connection_that_is_never_accepted_was_sent_nothing(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        url = f"http://127.0.0.1:{address[1]}"
        # Fill the queue: the kernel completes no further handshake.
        waiting = [socket.socket() for _ in range(4)]
        for peer in waiting:
            peer.setblocking(False)
            peer.connect_ex(address)
        try:
            outcome = connect(url, timeout=0.3, attempts=2).charge()
        finally:
            for peer in waiting:
                peer.close()
    assert outcome == NotSent("no connection to the gateway (ConnectTimeout)")


def test_host_without_an_address_was_sent_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    outcome = connect("http://gateway.invalid").charge()
    assert outcome == NotSent("no connection to the gateway (ConnectError)")


def test_every_attempt_sends_the_same_key_and_the_same_bytes(play: Play, connect: Connect) -> None:
    script = play(drops, is_down, charges)
    assert isinstance(connect(script.url).charge(key="k-42"), Done)
    assert len(script.requests) == 3
    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in script.requests), strict=True)
    assert len(set(bodies)) == 1
    assert all(b"idempotency-key: k-42\r\n" in head.lower() for head in heads)
    for number, head in enumerate(heads, 1):
        assert f"x-retry-attempt: {number}; max=3".encode() in head.lower()


def test_long_retry_after_is_handed_to_the_caller_and_not_waited_for(
    play: Play, connect: Connect
) -> None:
    script = play(answers(503, BUSY, Retry_After="3600"), charges)
    client = connect(script.url)
    outcome = client.charge()
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after == 3600
    assert (len(script.requests), client.pauses) == (1, [])


def test_retry_after_that_is_a_date_is_read_by_the_gateways_own_clock(
    play: Play, connect: Connect
) -> None:
    now, later = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:37 GMT"
    outcome = connect(play(answers(503, BUSY, Retry_After=later, Date=now)).url).charge()
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after == 60


def test_waits_stay_within_the_promised_bound(play: Play, connect: Connect) -> None:
    limit = str(int(RETRY_AFTER_LIMIT))
    script = play(*[answers(429, BUSY, Retry_After=limit)] * 4, charges)
    client = connect(script.url, attempts=5)
    assert isinstance(client.charge(), Done)
    assert len(client.pauses) == 4
    assert sum(client.pauses) + 5 * client.adapter.timeout <= client.adapter.longest_call


def test_backoff_is_drawn_anew_and_grows_to_its_cap(connect: Connect, play: Play) -> None:
    budget = BudgetPolicy(floor=19)
    client = connect(play(*[is_down] * 20).url, attempts=20, budget=budget)
    assert isinstance(client.charge(), NotSent)
    assert len(set(client.pauses)) == 19
    for number, pause in enumerate(client.pauses):
        assert 0 <= pause <= min(1.0, 0.1 * 2**number)


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404])
def test_answer_that_a_repeat_cannot_change_is_not_repeated(
    play: Play, connect: Connect, status: int
) -> None:
    script = play(answers(status, {"error": {"code": "x"}}, Location="/charges"), charges)
    assert isinstance(connect(script.url).charge(), Unknown)
    assert len(script.requests) == 1


def test_defect_of_our_own_is_not_hidden_as_an_outcome(connect: Connect) -> None:
    with pytest.raises(TypeError):
        connect("http://127.0.0.1:1").charge(amount=object())  # type: ignore[arg-type]
