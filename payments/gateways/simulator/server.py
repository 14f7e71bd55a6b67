"""HTTP/1.1 in front of the desk: read a request, answer it or drop it."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from payments.gateways.simulator.desk import Control, Desk, Outcome
from payments.gateways.simulator.errors import AnswerLost, Problem, invalid
from payments.gateways.simulator.orders import ChargeOrder, RefundOrder

MAX_BODY = 64 * 1024
MAX_DELAY = 600.0
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

Answer = tuple[int, Any, Mapping[str, str]]


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    # Not http.server.HTTPServer: its bind looks the host name up, which may hang without a network.
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], desk: Desk) -> None:
        self.desk = desk
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        # A charge's answer must not wait for the acknowledgement of the packet before it.
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A caller that gave up or was killed is everyday life here; anything else is a defect.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "SimulatedGateway/1"
    wbufsize = -1  # one packet an answer: headers and body are flushed together
    server: Server

    def do_GET(self) -> None:
        self._serve(_GET)

    def do_POST(self) -> None:
        self._serve(_POST)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing: the ledger is the log."""

    def _serve(self, routes: Mapping[str, Callable[[Handler], Answer]]) -> None:
        try:
            self._body = self._read_body()
            answer = self._route(routes)(self)
        except AnswerLost:
            self._drop()
            return
        except Problem as problem:
            answer = problem.status, problem.body(), problem.headers()
        self._answer(*answer)

    def _route(self, routes: Mapping[str, Callable[[Handler], Answer]]) -> Callable[..., Answer]:
        path = urlsplit(self.path).path
        if path in routes:
            return routes[path]
        if path in _GET or path in _POST:
            raise Problem(405, "method_not_allowed", "Not with this method.", processed=False)
        raise Problem(404, "not_found", "No such address.", processed=False)

    def _read_body(self) -> bytes:
        """The whole body, whatever becomes of it: what is left unread breaks keep-alive."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or len(length) > 9:
            self.close_connection = True
            raise Problem(411, "length_required", "Send a Content-Length.", processed=False)
        if int(length) > MAX_BODY:
            self.close_connection = True
            raise Problem(413, "too_large", "The body is too large.", processed=False)
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the caller died while sending: nothing may run
            raise AnswerLost
        return body

    def _answer(self, status: int, content: Any, headers: Mapping[str, str]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):  # the caller may be gone already
            self.connection.shutdown(socket.SHUT_RDWR)

    # What the routes need of a request.

    def fields(self) -> dict[str, Any]:
        try:
            body = json.loads(self._body)
        except (ValueError, RecursionError):
            raise invalid("The body is not JSON.") from None
        if not isinstance(body, dict):
            raise invalid("The body must be a JSON object.")
        return body

    def idempotency_key(self) -> str | None:
        keys = self.headers.get_all("Idempotency-Key", [])
        if not keys:
            return None
        if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
            raise invalid("Idempotency-Key must be 1 to 255 visible ASCII characters, sent once.")
        return str(keys[0])

    def query(self, *names: str) -> dict[str, str]:
        """The parameters of the query, each of which is one of these and given once."""
        given = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if unknown := sorted(set(given) - set(names)):
            raise invalid(f"unknown parameters: {', '.join(map(ascii, unknown))}.")
        if any(len(values) > 1 for values in given.values()):
            raise invalid("Give each parameter once.")
        return {name: value for name, (value,) in given.items()}


def _charge(request: Handler) -> Answer:
    order = ChargeOrder.read(request.fields())
    return _created(request.server.desk.charge(order, request.idempotency_key()))


def _refund(request: Handler) -> Answer:
    order = RefundOrder.read(request.fields())
    return _created(request.server.desk.refund(order, request.idempotency_key()))


def _created(outcome: Outcome) -> Answer:
    headers = {"Idempotent-Replayed": "true"} if outcome.replayed else {}
    return 201, outcome.entry.as_dict(), headers


def _charges(request: Handler) -> Answer:
    return _find(request, "charge")


def _refunds(request: Handler) -> Answer:
    return _find(request, "refund")


def _find(request: Handler, kind: str) -> Answer:
    given = request.query("key", "reference")
    if not given:
        raise invalid("Give a key or a reference: ?key=….")
    with request.server.desk.ledger.transaction() as books:
        entries = books.find(kind, given.get("key"), given.get("reference"))
    return 200, [entry.as_dict() for entry in entries], {}


def _ledger(request: Handler) -> Answer:
    given: dict[str, Any] = dict(request.query("since", "until", "after", "limit"))
    for name in given.keys() & {"since", "until"}:
        given[name] = _moment(given[name])
    if "limit" in given:
        if not re.fullmatch("[1-9][0-9]{0,3}", given["limit"]):
            raise invalid("limit must be 1 to 9999.")
        given["limit"] = int(given["limit"])
    with request.server.desk.ledger.transaction() as books:
        entries = books.moved(**given)
    return 200, [entry.as_dict() for entry in entries], {}


def _moment(text: str) -> str:
    """A moment as the books write it, so that they compare as texts."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("since and until must be ISO 8601.") from None
    if moment.tzinfo is None:
        raise invalid("since and until need an offset.")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _health(request: Handler) -> Answer:
    return 200, {"status": "ok"}, {}


def _control(request: Handler) -> Answer:
    return 200, vars(request.server.desk.control), {}


def _set_control(request: Handler) -> Answer:
    fields = request.fields()
    if unknown := sorted(set(fields) - set(vars(Control()))):
        raise invalid(f"unknown switches: {', '.join(map(ascii, unknown))}.")
    if any(type(fields[name]) is not bool for name in ("dedupe", "down") if name in fields):
        raise invalid("dedupe and down must be true or false.")
    delay = fields.get("delay", 0)
    if type(delay) not in (int, float) or not 0 <= delay <= MAX_DELAY:
        raise invalid(f"delay must be 0 to {MAX_DELAY:g} seconds.")
    for name, value in fields.items():
        setattr(request.server.desk.control, name, value)
    return _control(request)


_GET: dict[str, Callable[[Handler], Answer]] = {
    "/charges": _charges,
    "/refunds": _refunds,
    "/ledger": _ledger,
    "/healthz": _health,
    "/control": _control,
}
_POST: dict[str, Callable[[Handler], Answer]] = {
    "/charges": _charge,
    "/refunds": _refund,
    "/control": _set_control,
}
