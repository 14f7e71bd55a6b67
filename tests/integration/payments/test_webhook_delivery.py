"""What leaves this machine for a URL that a stranger chose, and what the answer means."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from standardwebhooks import Webhook

from idempotency.client import total_time
from idempotency.client.transports import NoAnswer
from idempotency.outbox import Dead, Delivered, Ending, Message, Retry
from payments.exceptions import RefusedUrl
from payments.models import WebhookEndpoint
from payments.webhooks import delivery, endpoints
from payments.webhooks.addresses import AddressBook
from payments.webhooks.delivery import Postman
from tests.integration.client.loopback import Answer, Server
from tests.integration.payments.api import Api

PUBLIC = "93.184.216.34"
NAME = "hooks.example"


class Names:
    """A resolver that says something else each time, as hostile ones do."""

    def __init__(self, *answers: str) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return [next(self._answers)]


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers on loopback that answer as told."""
    with ExitStack() as running:
        yield lambda **answer: running.enter_context(Server(lambda seen: Answer(**answer)))


def url_of(server: Server) -> str:
    """The server under a name, as a merchant would give it."""
    return f"{server.scheme}://{NAME}:{server.server_address[1]}/hook"


def post(postman: Postman, url: str) -> Any:
    return postman.post(url, "{}", {})


# --- Names that change ----------------------------------------------------------------------------


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The name would lead inside if anybody asked a second time."""
    settings.PAYMENTS_WEBHOOKS = {}
    connected = []

    class Network(httpcore2.SyncBackend):
        def connect_tcp(self, host: str, port: int, *options: Any) -> Any:
            connected.append(host)
            raise httpcore2.ConnectError("the tests have no internet")

    monkeypatch.setattr(total_time.httpcore2, "SyncBackend", Network)
    names = Names(PUBLIC, "127.0.0.1")
    with pytest.raises(NoAnswer):
        post(Postman(AddressBook(names)), f"https://{NAME}/")
    assert connected == [PUBLIC]
    assert names.asked == [NAME]


def test_a_name_that_has_turned_inside_since_it_was_written_is_not_called(
    start: Callable[..., Server], settings: Any
) -> None:
    settings.PAYMENTS_WEBHOOKS = {}
    server = start()
    book = AddressBook(Names(PUBLIC, "127.0.0.1"))
    assert book.addresses(NAME, 443) == [PUBLIC]
    with pytest.raises(RefusedUrl):
        post(Postman(book), url_of(server).replace("http:", "https:"))
    assert server.seen == []


def test_each_delivery_looks_the_name_up_anew(start: Callable[..., Server]) -> None:
    server = start()
    postman = Postman(AddressBook(Names("127.0.0.1", "10.0.0.1")))
    assert post(postman, url_of(server)).status_code == 200
    with pytest.raises(RefusedUrl):
        post(postman, url_of(server))
    assert [seen.headers["Host"] for seen in server.seen] == [url_of(server).split("/")[2]]


def test_a_row_of_a_form_that_is_refused_today_is_not_called(start: Callable[..., Server]) -> None:
    server = start()
    with pytest.raises(RefusedUrl):
        post(Postman(), server.url)
    assert server.seen == []


# --- Ways round -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(start: Callable[..., Server], status: int) -> None:
    inside = start()
    server = start(status=status, headers={"Location": inside.url})
    answer = post(Postman(AddressBook(Names("127.0.0.1"))), url_of(server))
    assert inside.seen == []
    assert isinstance(delivery.ending_of(answer), Retry)


def test_a_proxy_in_the_environment_is_not_asked(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = start(), start()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    post(Postman(AddressBook(Names("127.0.0.1"))), url_of(server))
    assert (len(server.seen), proxy.seen) == (1, [])


def test_an_answer_that_does_not_end_is_cut_off_and_counts(start: Callable[..., Server]) -> None:
    server = start(body=b"x" * 100 * delivery.MAX_ANSWER)
    answer = post(Postman(AddressBook(Names("127.0.0.1"))), url_of(server))
    assert isinstance(delivery.ending_of(answer), Delivered)
    assert len(answer.content) < 3 * delivery.MAX_ANSWER


def test_an_answer_that_is_not_what_it_is_called_counts(start: Callable[..., Server]) -> None:
    server = start(body=b"ok", headers={"Content-Encoding": "gzip"})
    answer = post(Postman(AddressBook(Names("127.0.0.1"))), url_of(server))
    assert isinstance(delivery.ending_of(answer), Delivered)


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_that_breaks_off_counts_by_its_status(status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=break_off, args=(listening, status), daemon=True)
        server.start()
        url = f"http://{NAME}:{listening.getsockname()[1]}/hook"
        answer = post(Postman(AddressBook(Names("127.0.0.1"))), url)
        server.join()
    assert isinstance(delivery.ending_of(answer), Delivered if status == 200 else Retry)


def break_off(listening: socket.socket, status: int) -> None:
    """Read one request, and end the answer before its end."""
    connection, _ = listening.accept()
    with connection:
        seen = b""
        while b"\r\n\r\n{}" not in seen:
            seen += connection.recv(65536)
        connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n{" % status)


def test_the_certificate_has_to_be_the_names(start: Callable[..., Server], tmp_path: Path) -> None:
    certificate = tmp_path / "tls.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-subj", f"/CN={NAME}", "-days", "2"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", f"subjectAltName=DNS:{NAME}"]
    command += ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    subprocess.run(command, check=True, capture_output=True)
    certificate.write_text((tmp_path / "key").read_text() + (tmp_path / "crt").read_text())
    server = start()
    server.use_tls(str(certificate))
    trusting = ssl.create_default_context(cafile=str(certificate))
    postman = Postman(AddressBook(Names("127.0.0.1", "127.0.0.1")), verify=trusting)
    assert post(postman, url_of(server)).status_code == 200
    with pytest.raises(NoAnswer):
        post(postman, url_of(server).replace(NAME, "other.example"))
    assert len(server.seen) == 1


# --- A message and its endpoint -------------------------------------------------------------------


@pytest.fixture
def endpoint(acme: Api, start: Callable[..., Server]) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(
        merchant=acme.merchant, endpoint_id="main", url="http://localhost:1/"
    )


def message_to(endpoint: WebhookEndpoint, **changes: Any) -> Message:
    fields = {
        "id": uuid.uuid4(),
        "sequence": 1,
        "channel": "webhooks",
        "destination": endpoint.destination,
        "aggregate": "",
        "payload": {"type": "charge.succeeded", "data": {"z": "é", "a": 1}},
        "attempt": 1,
        "created_at": datetime.now(UTC),
    }
    return Message(**fields | changes)


def deliver_to(endpoint: WebhookEndpoint, server: Server, **changes: Any) -> Ending:
    endpoint.url = server.url.replace("127.0.0.1", "localhost")
    endpoint.save()
    return delivery.deliver(message_to(endpoint, **changes))


def test_a_message_is_signed_under_its_stable_id_and_its_bytes_stay_the_same(
    endpoint: WebhookEndpoint, start: Callable[..., Server]
) -> None:
    server = start(status=204)
    message_id = uuid.uuid4()
    ends = [deliver_to(endpoint, server, id=message_id, attempt=number) for number in (1, 2)]
    assert ends == [Delivered("204 No Content")] * 2
    assert {seen.body for seen in server.seen} == {
        b'{"data":{"a":1,"z":"\\u00e9"},"type":"charge.succeeded"}'
    }
    for seen in server.seen:
        assert seen.headers["webhook-id"] == str(message_id)
        assert seen.headers["Content-Type"] == "application/json"
        Webhook(endpoint.secret).verify(seen.body, dict(seen.headers))


@pytest.mark.parametrize(
    ("status", "headers", "ending"),
    [
        (200, {}, Delivered("200 OK")),
        (302, {"Location": "http://localhost/"}, Retry("302 Found")),
        (400, {}, Retry("400 Bad Request")),
        (404, {}, Retry("404 Not Found")),
        (429, {"Retry-After": "7"}, Retry("429 Too Many Requests", 7.0)),
        (500, {}, Retry("500 Internal Server Error")),
        (503, {"Retry-After": "120"}, Retry("503 Service Unavailable", 120.0)),
        (503, {"Retry-After": "soon"}, Retry("503 Service Unavailable")),
    ],
)
def test_an_answer_decides_what_becomes_of_the_message(
    endpoint: WebhookEndpoint,
    start: Callable[..., Server],
    status: int,
    headers: dict[str, str],
    ending: Ending,
) -> None:
    assert deliver_to(endpoint, start(status=status, headers=headers)) == ending
    endpoint.refresh_from_db()
    assert endpoint.enabled


def test_an_endpoint_that_is_gone_is_switched_off_and_gets_nothing_more(
    endpoint: WebhookEndpoint, start: Callable[..., Server]
) -> None:
    server = start(status=410)
    assert isinstance(deliver_to(endpoint, server), Dead)
    endpoint.refresh_from_db()
    assert not endpoint.enabled
    assert delivery.deliver(message_to(endpoint)) == Dead("The endpoint is switched off.")
    assert len(server.seen) == 1


def test_a_410_of_the_url_before_does_not_switch_off_the_one_after(
    endpoint: WebhookEndpoint,
) -> None:
    """The merchant moves while the old receiver answers."""
    called = WebhookEndpoint.objects.get()
    WebhookEndpoint.objects.update(url="https://example.com/new")
    endpoints.disable(endpoint=called)
    endpoint.refresh_from_db()
    assert endpoint.enabled


def test_a_message_for_an_endpoint_that_is_not_there_is_dead(endpoint: WebhookEndpoint) -> None:
    ending = delivery.deliver(message_to(endpoint, destination="acct_x/main"))
    assert isinstance(ending, Dead)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://nowhere.example/", "no address: "),
        ("https://10.0.0.1/", "A webhook's URL is https with a host name"),
    ],
)
def test_what_cannot_be_called_is_tried_again(
    endpoint: WebhookEndpoint, url: str, reason: str
) -> None:
    WebhookEndpoint.objects.update(url=url)
    ending = delivery.deliver(message_to(endpoint))
    assert isinstance(ending, Retry)
    assert ending.reason.startswith(reason)


def test_a_receiver_that_does_not_listen_is_tried_again(endpoint: WebhookEndpoint) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        WebhookEndpoint.objects.update(url=f"http://localhost:{deaf.getsockname()[1]}/")
        assert delivery.deliver(message_to(endpoint)) == Retry("no answer: ConnectError")


def test_a_receiver_that_stalls_is_given_up_after_the_timeout(
    endpoint: WebhookEndpoint, settings: Any
) -> None:
    settings.PAYMENTS_WEBHOOKS = {"ALLOW_LOOPBACK": True, "TIMEOUT": 0.1}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        WebhookEndpoint.objects.update(url=f"http://localhost:{silent.getsockname()[1]}/")
        assert delivery.deliver(message_to(endpoint)) == Retry("no answer: ReadTimeout")
