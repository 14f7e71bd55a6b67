"""localstripe in a process of its own, and the proxy that gives it Stripe's rules for keys."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import httpx2

from config import tether
from tests.plugins.fault_proxy import FaultProxy, Message
from tests.plugins.gateway import PATIENCE, ROOT, until

API_KEY = "sk_test_of_the_tests"


class Server:
    """A program that prints its URL and then serves. It dies with the tests."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        with log.open("wb") as output:
            self._process = tether.start(
                command, log=output, cwd=ROOT, at_parents_death=signal.SIGKILL
            )
        until(lambda: "http://" in log.read_text() or self._process.poll() is not None)
        assert self._process.poll() is None, log.read_text()
        self.url = log.read_text().split()[0]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Localstripe(Server):
    """localstripe, and what its books say to somebody who asks it directly."""

    def __init__(self, folder: Path) -> None:
        program = "tests.integration.gateways.stripe.run_localstripe"
        super().__init__([sys.executable, "-m", program], folder / "localstripe.log")
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {API_KEY}"},
            timeout=PATIENCE,
            trust_env=False,
        )

    def intents(self, reference: str) -> list[dict[str, Any]]:
        """Every payment intent with that reference, newest first."""
        return self._with("payment_intents", reference)

    def refunds(self, reference: str) -> list[dict[str, Any]]:
        return self._with("refunds", reference)

    def post(self, path: str, **data: Any) -> Any:
        return self._http.post(f"/v1/{path}", data=data).raise_for_status().json()

    def forget(self) -> None:
        """Empty the books."""
        self._http.delete("/_config/data").raise_for_status()

    def close(self) -> None:
        self._http.close()
        super().close()

    def _with(self, path: str, reference: str) -> list[dict[str, Any]]:
        answer = self._http.get(f"/v1/{path}", params={"limit": 10_000}).raise_for_status()
        objects: list[dict[str, Any]] = answer.json()["data"]
        return [it for it in objects if it["metadata"].get("reference") == reference]


@dataclass
class Ending:
    """How a request ends in place of its own answer."""

    status: int
    body: dict[str, Any]
    #: Whether the server does the work all the same.
    executed: bool = False


class Front(FaultProxy):
    """A proxy that can also end a POST itself."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._endings: deque[Ending] = deque()
        #: Requests that the server was asked to carry out wait for it.
        self.gate = threading.Event()
        self.gate.set()
        #: Set when such a request has come as far as the gate.
        self.arrived = threading.Event()
        #: Of the POSTs that came.
        self.keys: list[str] = []

    def end(self, *endings: Ending) -> None:
        """Say how the next POSTs end, each after the work was done or in place of it."""
        self._endings.extend(endings)

    def ask(self, request: Message) -> Message:
        if method_of(request) != "POST":
            return super().ask(request)
        self.keys.append(header(request, "idempotency-key"))
        return self.carry_out(request)

    def carry_out(self, request: Message) -> Message:
        self.arrived.set()
        assert self.gate.wait(PATIENCE)
        ending = self._endings.popleft() if self._endings else None
        if ending is None:
            return super().ask(request)
        if ending.executed:
            super().ask(request)
        return make_answer(ending.status, ending.body)


@dataclass
class _Kept:
    """What is known of a key."""

    order: tuple[bytes, bytes]
    answer: Message | None = None


class StripeRules(Front):
    """Gives the server behind it Stripe's rules for keys, as documented.

    The first result is kept, a 500 too, and replayed with ``Idempotent-Replayed: true``; the key
    with other parameters is a 400, and while the first request runs a 409. Nothing is kept of a
    401, a 429, a 409, and of parameters that are not valid.
    """

    UNKEPT = frozenset({400, 401, 404, 409, 429})

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._kept: dict[str, _Kept] = {}
        self._looking = threading.Lock()

    def carry_out(self, request: Message) -> Message:
        key, order = header(request, "idempotency-key"), (target_of(request), request.body)
        if not key:
            return super().carry_out(request)
        with self._looking:
            first = key not in self._kept
            kept = self._kept.setdefault(key, _Kept(order))
        if not first:
            return _kept_answer(kept, order)
        answer = super().carry_out(request)
        with self._looking:
            kept.answer = answer
            if status_of(answer) in self.UNKEPT:
                del self._kept[key]
        return answer

    def forget(self) -> None:
        """What happens to keys after a day or more."""
        self._kept.clear()


def _kept_answer(kept: _Kept, order: tuple[bytes, bytes]) -> Message:
    if kept.order != order:
        message = "Keys for idempotent requests can only be used with the same parameters."
        return make_answer(400, {"error": {"type": "idempotency_error", "message": message}})
    if kept.answer is None:
        error = {
            "type": "invalid_request_error",
            "code": "idempotency_key_in_use",
            "message": "There is currently another in-progress request using this key.",
        }
        return make_answer(409, {"error": error})
    headers = {"Idempotent-Replayed": "true"}
    return make_answer(status_of(kept.answer), kept.answer.body, **headers)


def make_answer(status: int, body: Any, **headers: str) -> Message:
    """An answer that no server gave."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    head += ["Content-Type: application/json"]
    raw = "\r\n".join(head).encode() + b"\r\n\r\n" + content
    return Message(raw, [h11.Data(data=content)], keeps_alive=True)


def header(request: Message, name: str) -> str:
    lines = request.head.split(b"\r\n")[1:]
    found = [it.partition(b":")[2] for it in lines if it.lower().startswith(name.encode() + b":")]
    return found[0].strip().decode() if found else ""


def method_of(request: Message) -> str:
    return request.head.split(b" ", 1)[0].decode()


def target_of(request: Message) -> bytes:
    return request.head.split(b" ", 2)[1]


def status_of(answer: Message) -> int:
    return int(answer.head.split(b" ", 2)[1])
