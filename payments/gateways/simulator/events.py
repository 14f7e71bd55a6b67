"""Tells a webhook what happened, signed by the Standard Webhooks scheme; some times, then no more.

The scheme is spelled out here, with the standard library only, so that the product's own reading of
it is checked against another one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from heapq import heappop, heappush

from payments.gateways.simulator.ledger import Entry

#: How often an event is sent at most, and the longest wait for one answer in seconds.
ATTEMPTS, TIMEOUT = 8, 10.0
SENDERS = 4


@dataclass(order=True)
class _Due:
    at: float
    message_id: str = field(compare=False)
    body: bytes = field(compare=False)
    sent: int = field(default=0, compare=False)


class Events:
    """Sends events in threads of its own. What was not delivered when the process ends is lost: the
    ledger is what can be asked then.

    ``wait``: seconds before the first attempt, as a real gateway takes some; doubled each time.
    """

    def __init__(self, url: str, secret: str, *, wait: float = 0.5) -> None:
        self._url = url
        self._key = base64.b64decode(secret.removeprefix("whsec_"))
        self._wait = wait
        self._due: list[_Due] = []
        self._news = threading.Condition()
        # No proxy out of the environment, and no redirect: a POST would become a GET.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        for _ in range(SENDERS):
            threading.Thread(target=self._run, daemon=True).start()

    def tell(self, entry: Entry) -> None:
        """Have what this entry says told."""
        body = json.dumps(event_of(entry)).encode()
        self._put(_Due(time.monotonic() + self._wait, f"evt_{entry.id}", body))

    def _put(self, due: _Due) -> None:
        with self._news:
            heappush(self._due, due)
            self._news.notify()

    def _run(self) -> None:
        while True:
            due = self._next()
            due.sent += 1
            if not self._send(due) and due.sent < ATTEMPTS:
                due.at = time.monotonic() + max(0.05, self._wait) * 2**due.sent
                self._put(due)

    def _next(self) -> _Due:
        with self._news:
            while True:
                left = self._due[0].at - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heappop(self._due)
                self._news.wait(left)

    def _send(self, due: _Due) -> bool:
        headers = {"Content-Type": "application/json", **self._signed(due.message_id, due.body)}
        request = urllib.request.Request(self._url, due.body, headers)  # noqa: S310 - an option's
        try:
            with self._http.open(request, timeout=TIMEOUT) as answer:
                return 200 <= answer.status < 300
        except (OSError, http.client.HTTPException):  # a status above 299 is among them
            return False

    def _signed(self, message_id: str, body: bytes) -> dict[str, str]:
        seconds = str(int(time.time()))
        text = b".".join([message_id.encode(), seconds.encode(), body])
        digest = hmac.new(self._key, text, hashlib.sha256).digest()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": seconds,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def event_of(entry: Entry) -> dict[str, object]:
    """What an entry of the ledger is told as; the same entry gives the same event."""
    data = entry.as_dict()
    if entry.status == "declined":
        data["code"] = "card_declined"
    return {"type": f"{entry.kind}.{entry.status}", "timestamp": entry.created, "data": data}
