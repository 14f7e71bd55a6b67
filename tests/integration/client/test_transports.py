"""httpx2 under the caller, over real sockets: time, troubles, connections."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from idempotency.client import total_time
from idempotency.client.classification import Trouble
from idempotency.client.httpx2_transports import AsyncHttpx2Transport, Httpx2Transport, trouble_of
from idempotency.client.messages import Request
from idempotency.client.total_time import DeadlineTransport
from idempotency.client.transports import Cancellation, NoAnswer
from tests.integration.client.loopback import PATIENCE, Answer, Seen, Server
from tests.plugins.fault_proxy import Fault, FaultProxy

Start = Callable[..., Server]
StartProxy = Callable[..., FaultProxy]

#: Seconds. Far below PATIENCE, far above what loopback takes.
SHORT = 1.0
#: Seconds within which something is over "at once" on a loaded machine.
SOON = 15.0


class Sender:
    """One of the two bindings behind one method."""

    def __init__(self, kind: str, **options: Any) -> None:
        self._tasks = kind == "tasks"
        self._options = options
        self._transport = None if self._tasks else Httpx2Transport(**options)

    def send(self, request: Request, timeout: float = PATIENCE) -> httpx2.Response:
        if self._transport is not None:
            return self._transport.send(request, timeout)
        return asyncio.run(self._send(request, timeout))

    async def _send(self, request: Request, timeout: float) -> httpx2.Response:
        transport = AsyncHttpx2Transport(**self._options)
        try:
            return await transport.send(request, timeout)
        finally:
            await transport.aclose()

    def trouble(self, request: Request, timeout: float = PATIENCE) -> Trouble:
        """How the request failed. The library's own exception came with it."""
        with pytest.raises(NoAnswer) as raised:
            self.send(request, timeout)
        assert isinstance(raised.value.error, httpx2.RequestError)
        assert str(raised.value.error.request.url) == request.url
        return raised.value.trouble

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


MakeSender = Callable[..., Sender]


@pytest.fixture(params=["thread", "tasks"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_sender(kind: str) -> Iterator[MakeSender]:
    """Makes senders with the given options of the transport."""
    made: list[Sender] = []

    def make(**options: Any) -> Sender:
        made.append(Sender(kind, **options))
        return made[-1]

    yield make
    for sender in made:
        sender.close()


@pytest.fixture
def sender(make_sender: MakeSender) -> Sender:
    return make_sender()


def get(url: str) -> Request:
    return Request("GET", url)


# --- What is sent and what comes back ------------------------------------------------------------


def test_the_request_arrives_as_it_was_made(sender: Sender, start_server: Start) -> None:
    server = start_server(lambda seen: Answer(201, b'{"id": 1}', {"X-Kind": "ok"}))
    headers = {"idempotency-key": "k", "content-type": "application/json"}
    response = sender.send(Request("POST", f"{server.url}/charges?a=b", headers, b'{"a": 1}'))
    assert (response.status_code, response.json(), response.headers["x-kind"]) == (
        201,
        {"id": 1},
        "ok",
    )
    assert response.raise_for_status() is response
    assert response.elapsed.total_seconds() > 0
    (seen,) = server.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/charges?a=b", b'{"a": 1}')
    arrived = {name.lower(): value for name, value in seen.headers.items()}
    assert arrived["idempotency-key"] == "k"
    assert arrived["content-length"] == "8"
    assert arrived["accept-encoding"] == "identity"
    assert len(arrived) == len(seen.headers)


def test_a_redirect_is_not_followed(sender: Sender, start_server: Start) -> None:
    """It would send the POST elsewhere, and with the API key."""
    server = start_server(lambda seen: Answer(307, b"", {"Location": "/elsewhere"}))
    assert sender.send(Request("POST", server.url)).status_code == 307
    assert len(server.seen) == 1


def test_cookies_of_one_call_are_not_sent_with_the_next(start_server: Start) -> None:
    server = start_server(lambda seen: Answer(200, b"", {"Set-Cookie": "session=1"}))
    transport = Httpx2Transport()
    for _ in range(2):
        transport.send(get(server.url), PATIENCE)
    assert ["cookie" in {name.lower() for name in seen.headers} for seen in server.seen] == [
        False,
        False,
    ]
    transport.close()


# --- Time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.DRIP, Fault.STALL])
def test_one_byte_a_second_runs_into_the_attempts_timeout(
    sender: Sender, start_server: Start, start_proxy: StartProxy, fault: Fault
) -> None:
    """A timeout that bounds each read never ends there, however long the answer."""
    proxy = start_proxy(start_server().url, drip_seconds=0.2)
    proxy.plan(fault)
    began = time.monotonic()
    assert sender.trouble(get(proxy.url), SHORT) is Trouble.TIMEOUT
    assert SHORT <= time.monotonic() - began < SOON


def test_the_timeout_of_httpx2s_own_transport_does_not_bound_the_attempt(
    start_server: Start, start_proxy: StartProxy
) -> None:
    """The trap itself, so that the test above is seen to test something."""
    proxy = start_proxy(start_server().url, drip_seconds=0.02)
    proxy.plan(Fault.DRIP, Fault.DRIP)
    with httpx2.Client(trust_env=False, timeout=0.5) as client:
        response = client.get(proxy.url)
    assert response.elapsed.total_seconds() > 1.0
    with (
        httpx2.Client(timeout=0.5, transport=DeadlineTransport()) as client,
        pytest.raises(httpx2.ReadTimeout),
    ):
        client.get(proxy.url)


def test_a_client_of_httpx2_may_use_the_transport_alone(start_server: Start) -> None:
    server = start_server(lambda seen: Answer(200, b"[1, 2]"))
    with httpx2.Client(transport=DeadlineTransport()) as client:
        assert client.get(server.url).json() == [1, 2]
    with httpx2.Client(transport=DeadlineTransport(), timeout=None) as client:
        assert client.get(server.url).json() == [1, 2]


# --- Troubles ------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_refused_connection_is_trouble_to_connect(sender: Sender, closed_port: int) -> None:
    assert sender.trouble(get(f"http://127.0.0.1:{closed_port}")) is Trouble.CONNECT


def test_a_host_without_address_is_trouble_to_connect(sender: Sender) -> None:
    assert sender.trouble(get("http://nowhere.invalid")) is Trouble.CONNECT


def test_a_handshake_that_never_comes_is_trouble_to_connect(sender: Sender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        assert sender.trouble(get(url), SHORT) is Trouble.CONNECT


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOSE, Fault.CUT])
def test_a_connection_that_breaks_is_trouble_to_read(
    sender: Sender, start_server: Start, start_proxy: StartProxy, fault: Fault
) -> None:
    proxy = start_proxy(start_server(lambda seen: Answer(200, b"x" * 1000)).url)
    proxy.plan(fault)
    assert sender.trouble(get(proxy.url)) is Trouble.READ
    assert sender.send(get(proxy.url)).status_code == 200


def test_an_answer_that_is_no_http_is_trouble_to_read(sender: Sender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert sender.trouble(get(url)) is Trouble.READ
        thread.join()


def test_an_answer_that_is_too_long_is_trouble_to_read(
    make_sender: MakeSender, start_server: Start
) -> None:
    server = start_server(lambda seen: Answer(200, b"x" * 2000))
    assert make_sender(max_answer=1999).trouble(get(server.url)) is Trouble.READ
    assert len(make_sender(max_answer=2000).send(get(server.url)).content) == 2000


def test_an_answer_that_cannot_be_decoded_is_trouble_to_read(
    sender: Sender, start_server: Start
) -> None:
    server = start_server(lambda seen: Answer(200, b"no gzip", {"Content-Encoding": "gzip"}))
    assert sender.trouble(get(server.url)) is Trouble.READ


def test_no_connection_of_the_pool_is_trouble_with_the_pool(start_server: Start) -> None:
    arrived, may_answer = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        arrived.set()
        may_answer.wait(PATIENCE)
        return Answer()

    server = start_server(answer)
    transport = Httpx2Transport(connections=1)
    busy = threading.Thread(target=transport.send, args=(get(server.url), PATIENCE))
    busy.start()
    assert arrived.wait(PATIENCE)
    with pytest.raises(NoAnswer) as raised:
        transport.send(get(server.url), 0.1)
    assert raised.value.trouble is Trouble.POOL
    may_answer.set()
    busy.join()
    assert transport.send(get(server.url), PATIENCE).status_code == 200
    transport.close()


def test_in_tasks_no_connection_of_the_pool_is_trouble_with_the_pool(start_server: Start) -> None:
    may_answer = threading.Event()
    server = start_server(lambda seen: Answer(200, str(may_answer.wait(PATIENCE)).encode()))

    async def main() -> None:
        transport = AsyncHttpx2Transport(connections=1)
        busy = asyncio.ensure_future(transport.send(get(server.url), PATIENCE))
        while not server.seen:
            await asyncio.sleep(0.01)
        with pytest.raises(NoAnswer) as raised:
            await transport.send(get(server.url), 0.1)
        assert raised.value.trouble is Trouble.POOL
        may_answer.set()
        await busy
        await transport.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("bad", ["a b\r\n", "\x00"])
def test_a_request_that_breaks_the_protocol_is_unknown_trouble(
    sender: Sender, start_server: Start, bad: str
) -> None:
    """Nothing that a retry could help with."""
    request = Request("GET", start_server().url, {"x-bad": bad})
    assert sender.trouble(request) is Trouble.UNKNOWN


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate that nobody signed, with its key."""
    path = tmp_path / "tls.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    subprocess.run(command, check=True, capture_output=True)
    with path.open("a") as file:
        file.write(path.with_suffix(".crt").read_text())
    return path


def test_a_certificate_that_is_not_trusted_is_trouble_with_tls(
    sender: Sender, make_sender: MakeSender, certificate: Path
) -> None:
    with Server() as server:
        server.use_tls(str(certificate))
        assert sender.trouble(get(server.url)) is Trouble.TLS
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert make_sender(verify=trusting).send(get(server.url)).status_code == 200
        assert make_sender(verify=False).send(get(server.url)).status_code == 200


def test_a_server_that_speaks_no_tls_is_trouble_with_tls(
    sender: Sender, start_server: Start
) -> None:
    url = start_server().url.replace("http:", "https:")
    assert sender.trouble(get(url)) is Trouble.TLS


def test_a_connection_that_breaks_in_the_handshake_is_trouble_to_connect(sender: Sender) -> None:
    """It says nothing about certificates: a server that restarts does that."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            peer, _ = server.accept()
            peer.recv(65536)
            peer.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert sender.trouble(get(url)) is Trouble.CONNECT
        thread.join()


def test_a_client_certificate_that_is_refused_after_the_handshake_is_trouble_with_tls() -> None:
    """As TLS 1.3 does it: in place of the answer."""
    refusal = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert")
    refusal.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    error = httpx2.ReadError("alert")
    error.__cause__ = refusal
    assert trouble_of(error) is Trouble.TLS
    refusal.reason = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    assert trouble_of(error) is Trouble.READ


# --- Connections ---------------------------------------------------------------------------------


def test_a_connection_is_used_again(start_server: Start) -> None:
    server = start_server()
    transport = Httpx2Transport()
    for _ in range(3):
        transport.send(get(server.url), PATIENCE)
    assert len({seen.port for seen in server.seen}) == 1
    transport.close()
    transport.send(get(server.url), PATIENCE)
    assert len({seen.port for seen in server.seen}) == 2
    transport.close()


def test_a_fork_does_not_use_its_parents_connections(start_server: Start) -> None:
    """Two processes on one connection would read each other's answers."""
    server = start_server(lambda seen: Answer(200, seen.path.encode()))
    program = f"""
import os, sys
from idempotency.client.httpx2_transports import Httpx2Transport
from idempotency.client.messages import Request
transport = Httpx2Transport()
transport.send(Request("GET", {server.url!r} + "/parent"), 30)
child = os.fork()
for _ in range(20):
    path = "/child" if child == 0 else "/parent"
    response = transport.send(Request("GET", {server.url!r} + path), 30)
    assert response.text == path, response.text
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit(status)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    ports = {
        path: {seen.port for seen in server.seen if seen.path == path}
        for path in ("/parent", "/child")
    }
    assert len(ports["/parent"]) == len(ports["/child"]) == 1
    assert ports["/parent"] != ports["/child"]


@pytest.mark.parametrize("options", [{}, {"retries": 3}])
def test_httpx2s_own_transport_is_refused(options: dict[str, int]) -> None:
    """It may retry on its own, and its timeout bounds each read."""
    with pytest.raises(ValueError, match="DeadlineTransport"):
        Httpx2Transport(httpx2.HTTPTransport(**options))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="AsyncDeadlineTransport"):
        AsyncHttpx2Transport(httpx2.AsyncHTTPTransport(**options))  # type: ignore[arg-type]


def test_an_application_can_be_called_without_a_network() -> None:
    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("201 Created", [("Content-Type", "application/json")])
        return [json.dumps(environ["HTTP_IDEMPOTENCY_KEY"]).encode()]

    transport = Httpx2Transport(httpx2.WSGITransport(application))  # type: ignore[arg-type]
    request = Request("POST", "http://testserver/", {"idempotency-key": "k"})
    assert transport.send(request, PATIENCE).json() == "k"


# --- Cancellation --------------------------------------------------------------------------------


def test_a_thread_that_waits_for_an_answer_is_interrupted_at_once(
    start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server().url)
    proxy.plan(Fault.STALL)
    transport, cancellation, ends = Httpx2Transport(), Cancellation(), []

    def send() -> None:
        with pytest.raises(NoAnswer) as raised:
            transport.send(get(proxy.url), 600, cancellation)
        ends.append(raised.value.trouble)

    thread = threading.Thread(target=send)
    thread.start()
    while not proxy.requests:
        time.sleep(0.01)
    cancellation.cancel()
    thread.join(SOON)
    assert ends == [Trouble.CANCELLED]
    assert transport.send(get(proxy.url), PATIENCE).status_code == 200
    transport.close()


def test_what_was_cancelled_before_it_began_is_not_sent(start_server: Start) -> None:
    server = start_server()
    transport, cancellation = Httpx2Transport(), Cancellation()
    cancellation.cancel()
    with pytest.raises(NoAnswer) as raised:
        transport.send(get(server.url), PATIENCE, cancellation)
    assert raised.value.trouble is Trouble.CANCELLED
    assert server.seen == []
    transport.close()


def test_a_cancellation_that_comes_late_harms_no_other_request(start_server: Start) -> None:
    """The connection is in its pool by then, or already somebody else's."""
    server = start_server()
    transport = Httpx2Transport(connections=1)
    for _ in range(50):
        cancellation = Cancellation()
        transport.send(get(server.url), PATIENCE, cancellation)
        cancellation.cancel()
    transport.send(get(server.url), PATIENCE)
    assert len({seen.port for seen in server.seen}) == 1
    transport.close()


def test_a_cancellation_just_when_the_connection_is_given_back_leaves_it_whole(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    transport, cancellation = Httpx2Transport(connections=1), Cancellation()
    close = httpcore2.Response.close

    def close_and_cancel(response: httpcore2.Response) -> None:
        close(response)
        cancellation.cancel()

    monkeypatch.setattr(httpcore2.Response, "close", close_and_cancel)
    with pytest.raises(NoAnswer):
        transport.send(get(server.url), PATIENCE, cancellation)
    monkeypatch.undo()
    transport.send(get(server.url), PATIENCE)
    assert len({seen.port for seen in server.seen}) == 1
    transport.close()


# --- Addresses -----------------------------------------------------------------------------------


class Addresses:
    """The system's way to connect, with a first address that never answers."""

    def __init__(self, silent: str) -> None:
        self._silent = silent
        self._system = httpcore2.SyncBackend()
        self.tried: list[tuple[str, float]] = []

    def connect_tcp(self, host: str, port: int, timeout: float, *rest: Any) -> Any:
        self.tried.append((host, timeout))
        if host == self._silent:
            raise httpcore2.ConnectTimeout("silence")
        return self._system.connect_tcp(host, port, timeout, *rest)


def test_an_address_that_never_answers_leaves_time_for_the_next_one(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = Addresses("::1")
    monkeypatch.setattr(total_time, "_addresses", lambda host, port: ["::1", "127.0.0.1"])
    monkeypatch.setattr(total_time.httpcore2, "SyncBackend", lambda: addresses)
    transport = Httpx2Transport()
    assert transport.send(get(start_server().url), 10.0).status_code == 200
    (first, half), (second, rest) = addresses.tried
    assert (first, second) == ("::1", "127.0.0.1")
    assert half == pytest.approx(5.0, abs=0.5)
    assert rest > half
    transport.close()


def test_a_resolver_of_ones_own_says_where_to_connect_and_the_name_stays_in_the_request(
    start_server: Start,
) -> None:
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    server = start_server()
    url = server.url.replace("127.0.0.1", "hooks.invalid")
    transport = Httpx2Transport(resolve=resolve)
    assert transport.send(get(url), 10.0).status_code == 200
    assert [f"http://{host}:{port}" for host, port in asked] == [url]
    assert f"http://{server.seen[0].headers['Host']}" == url
    transport.close()


def test_what_a_resolver_raises_comes_out(start_server: Start) -> None:
    def refuse(host: str, port: int) -> list[str]:
        raise PermissionError(host)

    server = start_server()
    transport = Httpx2Transport(resolve=refuse)
    with pytest.raises(PermissionError):
        transport.send(get(server.url), 10.0)
    assert server.seen == []
    transport.close()
