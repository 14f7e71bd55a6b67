"""The simulated gateway over real HTTP: it is the ground truth, so it is held to its word."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.plugins.gateway import PATIENCE, ROOT, GatewayProcess

LOST = "lost"


def outcome(gateway: GatewayProcess, source: str, key: str | None = "k1") -> int | str:
    try:
        return int(gateway.charge(source, key=key).status_code)
    except httpx2.RemoteProtocolError:
        return LOST


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Run the calls in threads that all start at the same moment."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


# Sources


@pytest.mark.parametrize(
    ("source", "outcomes", "charged_after_first"),
    [
        ("tok_visa", [201, 201], 1),
        ("tok_declined", [402, 402], 0),
        ("tok_slow", [201, 201], 1),
        ("tok_answer_lost", [LOST, 201, 201], 1),
        ("tok_error_before", [500, 500, 201, 201], 0),
        ("tok_error_after", [500, 201, 201], 1),
        ("tok_busy", [429, 429, 201, 201], 0),
        ("tok_down", [503, 503, 503, 503], 0),
    ],
)
def test_source_behaves_as_documented_and_never_charges_a_key_twice(
    gateway: GatewayProcess, source: str, outcomes: list[int | str], charged_after_first: int
) -> None:
    assert outcome(gateway, source) == outcomes[0]
    assert len(gateway.ledger()) == charged_after_first
    assert [outcome(gateway, source) for _ in outcomes[1:]] == outcomes[1:]
    assert len(gateway.ledger()) == (1 if 201 in outcomes else 0)


def test_misbehaviour_is_counted_for_each_key(gateway: GatewayProcess) -> None:
    assert [outcome(gateway, "tok_busy", key="a") for _ in range(2)] == [429, 429]
    assert outcome(gateway, "tok_busy", key="b") == 429
    assert outcome(gateway, "tok_busy", key="a") == 201


def test_unavailable_answers_say_that_nothing_was_processed_and_errors_do_not_say(
    gateway: GatewayProcess,
) -> None:
    busy = gateway.charge("tok_busy", key="a")
    down = gateway.charge("tok_down", key="b")
    before = gateway.charge("tok_error_before", key="c")
    after = gateway.charge("tok_error_after", key="d")
    assert busy.headers["Retry-After"] == "1"
    assert busy.json()["error"]["processed"] is False
    assert down.json()["error"]["processed"] is False
    assert "processed" not in before.json()["error"]
    assert before.content == after.content  # a caller cannot tell whether it was charged


def test_slow_charge_holds_nobody_else_up(gateway: GatewayProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(gateway.charge, "tok_slow", key="slow")
        gateway.charge("tok_visa", key="quick").raise_for_status()
        assert not slow.done()
        assert [entry["idempotency_key"] for entry in gateway.ledger()] == ["quick"]
        assert slow.result().status_code == 201


def test_declined_charge_is_found_by_its_key_but_moves_no_money(gateway: GatewayProcess) -> None:
    answer = gateway.charge("tok_declined", key="k1")
    assert answer.json()["error"]["code"] == "card_declined"
    (charge,) = gateway.charges("k1")
    assert (charge["status"], charge["amount"]) == ("declined", 1000)
    assert gateway.ledger() == []


# Answers and the ledger


def test_charge_and_its_refund_appear_in_the_ledger_in_order(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=700, currency="JPY", reference="ch_1").json()
    order = {"charge": charge["id"], "amount": 200, "reference": "re_1"}
    refund = gateway.post("/refunds", order, key="k2").json()
    names = ("id", "kind", "amount", "currency", "idempotency_key", "reference")
    assert [tuple(entry[name] for name in names) for entry in gateway.ledger()] == [
        (charge["id"], "charge", 700, "JPY", "k1", "ch_1"),
        (refund["id"], "refund", 200, "JPY", "k2", "re_1"),
    ]
    assert all(entry["created"].endswith("+00:00") for entry in gateway.ledger())
    assert [entry["id"] for entry in gateway.refunds("k2")] == [refund["id"]]
    assert gateway.charges("k2") == []


def test_replay_is_the_first_answer_marked(gateway: GatewayProcess) -> None:
    first = gateway.charge(key="k1")
    replay = gateway.charge(key="k1")
    assert replay.content == first.content
    assert "Idempotent-Replayed" not in first.headers
    assert replay.headers["Idempotent-Replayed"] == "true"


def test_requests_without_a_key_each_charge(gateway: GatewayProcess) -> None:
    assert [outcome(gateway, "tok_visa", key=None) for _ in range(2)] == [201, 201]
    assert len(gateway.ledger()) == 2


@pytest.mark.parametrize(
    "change", [{"amount": 1001}, {"currency": "USD"}, {"source": "tok_slow"}, {"reference": "x"}]
)
def test_key_is_bound_to_the_parameters_it_was_first_seen_with(
    gateway: GatewayProcess, change: dict[str, Any]
) -> None:
    first = gateway.charge(key="k1")
    other = gateway.charge(key="k1", **change)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert gateway.charge(key="k1").content == first.content
    assert len(gateway.ledger()) == 1


def test_key_is_bound_even_when_its_first_request_failed(gateway: GatewayProcess) -> None:
    assert gateway.charge("tok_error_before", key="k1").status_code == 500
    assert gateway.charge("tok_error_before", key="k1", amount=1).status_code == 422


def test_key_of_a_charge_does_not_serve_for_a_refund(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1").json()
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}, key="k1")
    assert (refund.status_code, refund.json()["error"]["code"]) == (422, "idempotency_key_reused")


# Refunds


def test_refunds_never_exceed_the_charge(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    statuses = [
        gateway.post("/refunds", {"charge": charge, "amount": amount}).status_code
        for amount in (60, 41, 40, 1)
    ]
    assert statuses == [201, 422, 201, 422]


def test_refunds_that_race_never_exceed_the_charge(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    order = {"charge": charge, "amount": 30}
    answers = together(10, lambda n: gateway.post("/refunds", order, key=f"r{n}").status_code)
    assert sorted(answers) == [201] * 3 + [422] * 7


def test_only_a_charge_that_succeeded_can_be_refunded(gateway: GatewayProcess) -> None:
    gateway.charge("tok_declined", key="k1")
    (declined,) = gateway.charges("k1")
    charge = gateway.charge(key="k2").json()
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}).json()
    for target in (declined["id"], refund["id"], "gch_0"):
        answer = gateway.post("/refunds", {"charge": target, "amount": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "charge_unknown")


# Concurrency


@pytest.mark.parametrize("source", ["tok_visa", "tok_slow"])
def test_twenty_requests_with_one_key_at_once_are_one_charge(
    gateway: GatewayProcess, source: str
) -> None:
    answers = together(20, lambda _: gateway.charge(source, key="k1"))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert len(gateway.ledger()) == 1


def test_failures_are_counted_exactly_when_requests_race(gateway: GatewayProcess) -> None:
    statuses = together(10, lambda _: gateway.charge("tok_busy", key="k1").status_code)
    assert sorted(statuses) == [201] * 8 + [429] * 2
    assert len(gateway.ledger()) == 1


# The hostile gateway


def test_without_dedupe_every_request_charges_anew(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    hostile = start_gateway("--no-dedupe")
    answers = together(5, lambda _: hostile.charge(key="k1"))
    assert len({answer.json()["id"] for answer in answers}) == 5
    assert len(hostile.ledger()) == len(hostile.charges("k1")) == 5


def test_without_dedupe_a_retry_after_a_lost_answer_charges_twice(gateway: GatewayProcess) -> None:
    gateway.control(dedupe=False)
    assert [outcome(gateway, "tok_answer_lost") for _ in range(2)] == [LOST, 201]
    assert len(gateway.ledger()) == 2


def test_dedupe_switched_on_again_answers_with_the_first_charge(gateway: GatewayProcess) -> None:
    gateway.control(dedupe=False)
    first = gateway.charge(key="k1").json()
    gateway.charge(key="k1")
    gateway.control(dedupe=True)
    assert gateway.charge(key="k1").json() == first


# Switches


def test_gateway_that_is_down_charges_nothing_and_still_shows_its_ledger(
    gateway: GatewayProcess,
) -> None:
    charge = gateway.charge(key="k1").json()
    gateway.control(down=True)
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}, key="k2")
    assert {outcome(gateway, "tok_visa", key=key) for key in ("k1", "k3")} == {503}
    assert (refund.status_code, refund.json()["error"]["processed"]) == (503, False)
    assert len(gateway.ledger()) == 1
    gateway.control(down=False)
    assert outcome(gateway, "tok_visa", key="k3") == 201


def test_delay_comes_before_the_charge(gateway: GatewayProcess) -> None:
    gateway.control(delay=600)
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(
            f"{gateway.url}/charges",
            json={"amount": 1, "currency": "EUR", "source": "tok_visa"},
            timeout=0.5,
            trust_env=False,
        )
    assert gateway.ledger() == []
    gateway.control(delay=0)
    assert outcome(gateway, "tok_visa") == 201


@pytest.mark.parametrize(
    "switches", [{"down": 1}, {"dedupe": "no"}, {"delay": -1}, {"delay": True}, {"slow": True}, []]
)
def test_unknown_or_malformed_switches_are_refused(gateway: GatewayProcess, switches: Any) -> None:
    assert gateway.post("/control", switches).status_code == 400
    assert outcome(gateway, "tok_visa") == 201


# Input

GOOD = {"amount": 1, "currency": "EUR", "source": "tok_visa"}
# httpx2 would refuse to encode these, so the escape is spelt in the raw body.
SURROGATE = b'{"amount": 1, "currency": "EUR", "source": "tok_visa", "reference": "\\ud800"}'


@pytest.mark.parametrize(
    "body",
    [
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"amount": 0},
                {"amount": -1},
                {"amount": 1.0},
                {"amount": "1"},
                {"amount": True},
                {"amount": None},
                {"amount": 2**53},
                {"currency": "EURO"},
                {"currency": "eur"},
                {"currency": "€UR"},
                {"currency": 978},
                {"source": "tok_unheard_of"},
                {"source": None},
                {"reference": ""},
                {"reference": 7},
                {"reference": "x" * 256},
                {"reference": "a\0b"},
                {"descripton": "misspelt"},
            )
        ),
        b"",
        b"[]",
        b"{",
        b"\xff",
        SURROGATE,
        b'{"amount": ' + b"1" * 5000 + b', "currency": "EUR", "source": "tok_visa"}',
        b"[" * 30_000,
    ],
)
def test_malformed_charge_is_refused_and_leaves_no_trace(
    gateway: GatewayProcess, body: bytes
) -> None:
    headers = {"Idempotency-Key": "k1"}
    answer = httpx2.post(f"{gateway.url}/charges", content=body, headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert outcome(gateway, "tok_visa") == 201  # the key is still free


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "schlüssel".encode("latin-1")])
def test_malformed_key_is_refused(gateway: GatewayProcess, key: str | bytes) -> None:
    headers = {b"Idempotency-Key": key if isinstance(key, bytes) else key.encode()}
    answer = httpx2.post(f"{gateway.url}/charges", json=GOOD, headers=headers, trust_env=False)
    assert answer.status_code == 400
    assert gateway.ledger() == []


def send_raw(gateway: GatewayProcess, body: bytes, *, length: int | None = None) -> socket.socket:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=PATIENCE)
    size = len(body) if length is None else length
    head = f"POST /charges HTTP/1.1\r\nHost: gateway\r\nContent-Length: {size}\r\n\r\n"
    peer.sendall(head.encode() + body)
    return peer


def answer_of(peer: socket.socket) -> bytes:
    """The first bytes that come back; none when the connection is dropped."""
    try:
        return peer.recv(1024)
    except ConnectionResetError:
        return b""


def test_request_cut_short_runs_nothing(gateway: GatewayProcess) -> None:
    body = json.dumps(GOOD).encode()
    with send_raw(gateway, body, length=len(body) + 1) as peer:
        peer.shutdown(socket.SHUT_WR)
        assert answer_of(peer) == b""
    assert gateway.ledger() == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Length": "-1"}, 411),
        ({"Content-Length": "65537"}, 413),
    ],
)
def test_body_of_unknown_or_great_length_is_refused_unread(
    gateway: GatewayProcess, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE)
    connection.putrequest("POST", "/charges")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    with connection.getresponse() as answer:
        assert answer.status == status
    connection.close()


def test_unknown_address_is_404_and_wrong_method_405(gateway: GatewayProcess) -> None:
    assert gateway.post("/nothing", {}).status_code == 404
    assert gateway.post("/ledger", {}).status_code == 405


def test_look_up_needs_a_key(gateway: GatewayProcess) -> None:
    assert httpx2.get(f"{gateway.url}/charges", trust_env=False).status_code == 400


def test_connection_is_kept_also_after_a_refusal(gateway: GatewayProcess) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE)
    sockets = set()
    for body, status in ((b"{", 400), (json.dumps(GOOD).encode(), 201)):
        connection.request("POST", "/charges", body)
        sockets.add(connection.sock)
        with connection.getresponse() as answer:
            assert (answer.status, bool(answer.read())) == (status, True)
    connection.close()
    assert len(sockets) == 1


# Durability and the process


def test_sigkill_loses_neither_charge_nor_key_nor_count(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1").json()
    assert outcome(gateway, "tok_busy", key="k2") == 429
    assert outcome(gateway, "tok_answer_lost", key="k3") == LOST
    gateway.kill()
    gateway.start()
    assert [entry["idempotency_key"] for entry in gateway.ledger()] == ["k1", "k3"]
    assert gateway.charge(key="k1").json() == charge
    assert gateway.charge(key="k1", amount=1).status_code == 422
    assert [outcome(gateway, "tok_busy", key="k2") for _ in range(2)] == [429, 201]
    assert outcome(gateway, "tok_answer_lost", key="k3") == 201
    assert len(gateway.ledger()) == 3


def test_sigkill_at_any_moment_keeps_every_answered_charge(gateway: GatewayProcess) -> None:
    answered: list[str] = []

    def charge_until_it_dies(number: int) -> None:
        try:
            for count in range(10_000):
                answered.append(gateway.charge(key=f"{number}-{count}").json()["id"])
        except httpx2.TransportError:
            return

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(charge_until_it_dies, number) for number in range(4)]
        until(lambda: len(answered) >= 40)
        gateway.kill()
        for run in runs:
            run.result(PATIENCE)
    gateway.start()
    assert set(answered) <= {entry["id"] for entry in gateway.ledger()}


def test_sigterm_ends_it_cleanly_and_a_charge_under_way_does_not_happen(
    gateway: GatewayProcess,
) -> None:
    gateway.control(delay=600)
    with send_raw(gateway, json.dumps(GOOD).encode()) as peer:
        # Connections are taken in order: once this one is answered, the other is being served.
        assert httpx2.get(f"{gateway.url}/healthz", trust_env=False).status_code == 200
        assert gateway.stop() == 0
        assert answer_of(peer) == b""
    gateway.start()
    assert gateway.ledger() == []


def run_simulator(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "payments.gateways.simulator", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def refused_in_one_line(run: subprocess.CompletedProcess[str]) -> bool:
    lines = run.stderr.splitlines()
    return run.returncode == 1 and len(lines) == 1 and lines[0].startswith("simulated gateway: ")


def test_two_gateways_never_share_a_ledger(gateway: GatewayProcess) -> None:
    second = run_simulator("--data", str(gateway.data))
    assert refused_in_one_line(second)
    assert "Is another gateway running on it" in second.stderr


def test_port_in_use_is_said_in_one_line(gateway: GatewayProcess, tmp_path: Path) -> None:
    port = gateway.url.rpartition(":")[2]
    second = run_simulator("--data", str(tmp_path / "other.sqlite3"), "--port", port)
    assert refused_in_one_line(second)
    assert f":{port}" in second.stderr


def test_ledger_of_another_version_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "old.sqlite3"
    connection = sqlite3.connect(data)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    run = run_simulator("--data", str(data))
    assert refused_in_one_line(run)
    assert "another version" in run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux only")
def test_gateway_dies_with_its_parent(tmp_path: Path) -> None:
    program = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "payments.gateways.simulator", "--die-with-parent"]
    + ["--data", sys.argv[1]]
)
child.wait()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "gateway.sqlite3")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().split()[-1]
        assert httpx2.get(f"{url}/healthz", trust_env=False).json() == {"status": "ok"}
        os.kill(parent.pid, signal.SIGKILL)
        # Its standard output is the child's too: it ends when both are gone.
        assert parent.stdout.read() == ""
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/healthz", trust_env=False)


def test_simulator_needs_neither_django_nor_the_library() -> None:
    program = """
import sys
import payments.gateways.simulator.__main__
unwanted = {"django", "httpx2", "idempotency", "config"}
print(sorted(unwanted & {name.partition(".")[0] for name in sys.modules}))
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
