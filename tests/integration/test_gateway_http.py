"""The adapter against real sockets: the simulated gateway, and peers that misbehave by script."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.base import Gateway
from payments.gateways.http import BACKOFF_BASE, RETRY_AFTER_LIMIT, HttpGateway, get_gateway
from tests.plugins.gateway import PATIENCE, ROOT, GatewayProcess


class Client:
    """An adapter that records its waits instead of waiting."""

    def __init__(self, url: str, **options: Any) -> None:
        self.pauses: list[float] = []
        self.adapter = HttpGateway(url, **{"pause": self.pauses.append, **options})

    def charge(self, source: str = "tok_visa", *, key: str = "k1", amount: int = 1000) -> Outcome:
        return self.adapter.charge(
            amount=amount, currency="EUR", source=source, reference="ch_1", key=key
        )


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def connect(url: str, **options: Any) -> Client:
        clients.append(Client(url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.adapter.close()


Connect = Callable[..., Client]


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
    outcome = connect(gateway.url).charge("tok_slow")
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


# Peers by script

Act = Callable[[socket.socket], None]


class Script:
    """A server that plays one act a connection, then takes no more connections."""

    def __init__(self, *acts: Act) -> None:
        self.requests: list[bytes] = []
        self._acts = acts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        try:
            for number, act in enumerate(self._acts, 1):
                try:
                    peer, _ = self._listener.accept()
                except OSError:  # closed by the test: nobody came any more
                    return
                if number == len(self._acts):
                    self._listener.close()
                with closing(peer):
                    peer.settimeout(PATIENCE)
                    self.requests.append(read_request(peer))
                    act(peer)
        finally:
            self._listener.close()

    def close(self) -> None:
        with suppress(OSError):  # closed already, unless it still waits for somebody
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def read_request(peer: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += peer.recv(4096)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < lengths[0]:
        body += peer.recv(4096)
    return head + b"\r\n\r\n" + body


def answers(status: int, body: Any, **headers: str) -> Act:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    raw = "\r\n".join(lines).encode() + b"\r\n\r\n" + content
    return lambda peer: peer.sendall(raw)


def drops(peer: socket.socket) -> None:
    """Close without a byte."""


def resets(peer: socket.socket) -> None:
    # Linger of zero seconds: close() sends RST.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def drips(raw: bytes) -> Act:
    """Send a byte every 50 ms: each read succeeds in time, the whole never does."""

    def drip(peer: socket.socket) -> None:
        stopped = threading.Event()
        try:
            for byte in raw:
                peer.sendall(bytes([byte]))
                stopped.wait(0.05)
        except ConnectionError:  # the other side gave up, as it should
            return

    return drip


CHARGED = {"id": "gch_1", "status": "succeeded"}
BUSY = {"error": {"code": "busy", "message": "", "processed": False}}
charges = answers(201, CHARGED)
is_down = answers(503, BUSY)


@pytest.fixture
def play() -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def play(*acts: Act) -> Script:
        scripts.append(Script(*acts))
        return scripts[-1]

    yield play
    for script in scripts:
        script.close()


Play = Callable[..., Script]


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


def test_host_without_an_address_was_sent_nothing(connect: Connect) -> None:
    # RFC 6761 reserves this name: it never resolves.
    assert isinstance(connect("http://gateway.invalid:1").charge(), NotSent)


def test_every_attempt_sends_the_same_key_and_the_same_bytes(play: Play, connect: Connect) -> None:
    script = play(drops, is_down, charges)
    assert isinstance(connect(script.url).charge(key="k-42"), Done)
    assert len(script.requests) == 3
    assert len(set(script.requests)) == 1
    assert b"Idempotency-Key: k-42\r\n" in script.requests[0]


def test_long_retry_after_is_handed_to_the_caller_and_not_waited_for(
    play: Play, connect: Connect
) -> None:
    script = play(answers(503, BUSY, Retry_After="3600"), charges)
    client = connect(script.url)
    outcome = client.charge()
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after == 3600
    assert (len(script.requests), client.pauses) == (1, [])


def test_waits_stay_within_the_promised_bound(play: Play, connect: Connect) -> None:
    limit = str(int(RETRY_AFTER_LIMIT))
    script = play(*[answers(429, BUSY, Retry_After=limit)] * 4, charges)
    client = connect(script.url, attempts=5)
    assert isinstance(client.charge(), Done)
    assert len(client.pauses) == 4
    assert sum(client.pauses) + 5 * client.adapter.timeout <= client.adapter.longest_call


def test_backoff_is_drawn_anew_and_grows_to_its_cap(connect: Connect, play: Play) -> None:
    client = connect(play(*[is_down] * 20).url, attempts=20)
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


# Connections


class Counter:
    """A server that keeps connections open, and counts them."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._peers: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed by the test
                return
            self.connections += 1
            self._peers.append(peer)
            thread = threading.Thread(target=self._answer, args=[peer])
            self._threads.append(thread)
            thread.start()

    def _answer(self, peer: socket.socket) -> None:
        body = json.dumps(CHARGED).encode()
        head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n"
        with closing(peer):
            while peer.recv(1, socket.MSG_PEEK):
                read_request(peer)
                peer.sendall(head.encode() + body)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE)
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a connection was left open"


@pytest.fixture
def counter() -> Iterator[Counter]:
    server = Counter()
    yield server
    server.close()


def test_connection_is_reused(counter: Counter, connect: Connect) -> None:
    client = connect(counter.url)
    assert all(isinstance(client.charge(key=str(number)), Done) for number in range(5))
    assert counter.connections == 1
    client.adapter.close()


def test_threads_share_one_client(gateway: GatewayProcess, connect: Connect) -> None:
    client = connect(gateway.url)
    barrier = threading.Barrier(20)

    def charge(number: int) -> Outcome:
        barrier.wait(PATIENCE)
        return client.charge(key=str(number))

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(charge, range(20)))
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    assert len(gateway.ledger()) == 20
    assert len(client.adapter._clients) == 1


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
from payments.gateways.http import get_gateway
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


@pytest.mark.parametrize("given", [{}, {"URL": ""}, {"URL": "http://127.0.0.1:1", "RETRIES": 3}])
def test_settings_without_a_url_or_with_an_unknown_name_are_refused(
    settings: Any, given: dict[str, Any]
) -> None:
    settings.PAYMENTS_GATEWAY = given
    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_GATEWAY"):
        get_gateway()
