"""The simulated gateway as a server: what it refuses, what it survives, how it ends."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.plugins.gateway import LOST, PATIENCE, ROOT, GatewayProcess, until

# Input

GOOD = {"amount": 1, "currency": "EUR", "source": "tok_visa"}
# httpx2 would refuse to encode these, so the escape is spelt in the raw body.
SURROGATE = b'{"amount": 1, "currency": "EUR", "source": "tok_visa", "reference": "\\ud800"}'

MALFORMED = [
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
]


def post_raw(gateway: GatewayProcess, body: bytes, key: bytes) -> httpx2.Response:
    headers = {b"Idempotency-Key": key}
    return httpx2.post(f"{gateway.url}/charges", content=body, headers=headers, trust_env=False)


def test_malformed_charge_is_refused_and_leaves_no_trace(gateway: GatewayProcess) -> None:
    for number, body in enumerate(MALFORMED):
        answer = post_raw(gateway, body, key=b"k%d" % number)
        assert answer.status_code == 400, body[:100]
        assert answer.json()["error"]["code"] == "invalid_request"
        assert gateway.outcome("tok_visa", key=f"k{number}") == 201, "the key is no longer free"


def test_malformed_key_is_refused(gateway: GatewayProcess) -> None:
    for key in (b"", b"a b", b"x" * 256, "schlüssel".encode("latin-1")):
        assert post_raw(gateway, json.dumps(GOOD).encode(), key).status_code == 400, key
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
    assert gateway.outcome("tok_busy", key="k2") == 429
    assert gateway.outcome("tok_answer_lost", key="k3") == LOST
    gateway.kill()
    gateway.start()
    assert [entry["idempotency_key"] for entry in gateway.ledger()] == ["k1", "k3"]
    assert gateway.charge(key="k1").json() == charge
    assert gateway.charge(key="k1", amount=1).status_code == 422
    assert [gateway.outcome("tok_busy", key="k2") for _ in range(2)] == [429, 201]
    assert gateway.outcome("tok_answer_lost", key="k3") == 201
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
print(child.pid, flush=True)
child.wait()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "gateway.sqlite3")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        url = parent.stdout.readline().split()[-1]
        assert httpx2.get(f"{url}/healthz", trust_env=False).json() == {"status": "ok"}
        parent.kill()
        # The pipe is the child's standard output too: it ends when both are gone.
        ended, _, _ = select.select([parent.stdout], [], [], PATIENCE)
        if not ended:
            os.kill(child, signal.SIGKILL)
        assert ended


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
