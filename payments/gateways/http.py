"""The adapter to a gateway over HTTP: one key, a few attempts, an honest outcome."""

from __future__ import annotations

import atexit
import json
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx2
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from idempotency.operations import NotSent, Outcome, Unknown
from payments.gateways.answers import Answer, classify
from payments.gateways.base import Gateway
from payments.gateways.deadlines import DeadlineTransport

logger = logging.getLogger("payments.gateways")

#: Back-off before attempt n + 1: a draw from U(0, min(CAP, BASE · 2ⁿ⁻¹)) seconds (full jitter).
BACKOFF_BASE = 0.1
BACKOFF_CAP = 1.0
#: A gateway that asks for a longer wait (seconds) is not asked again by this call.
RETRY_AFTER_LIMIT = 2.0

# Errors that httpx2 raises before the first byte of the request has left.
_BEFORE_SENDING = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class HttpGateway:
    """A gateway at ``url``. Thread-safe, and safe to create before a fork.

    ``timeout``: seconds for one attempt, from waiting for a connection to the answer's last byte.
    ``attempts``: how often a call may be sent, the first time included. The key and the bytes of
    the body are the same every time. ``dedupes``: False for a gateway that does not honour the
    key; an attempt that may have moved money is then never repeated.

    Every call returns within ``longest_call`` seconds:
    ``attempts · timeout + (attempts - 1) · (RETRY_AFTER_LIMIT + BACKOFF_BASE)``.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        attempts: int = 3,
        dedupes: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"not an HTTP URL: {url!r}")
        if attempts < 1 or timeout <= 0:
            raise ValueError("attempts must be at least 1 and timeout above 0")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.attempts = attempts
        self.dedupes = dedupes
        self._pause = pause
        self._clients: dict[int, httpx2.Client] = {}

    @property
    def longest_call(self) -> float:
        """Seconds after which any call has returned; name resolution aside."""
        longest_pause = RETRY_AFTER_LIMIT + BACKOFF_BASE  # above any back-off
        return self.attempts * self.timeout + (self.attempts - 1) * longest_pause

    def charge(
        self, *, amount: int, currency: str, source: str, reference: str, key: str
    ) -> Outcome:
        order = {"amount": amount, "currency": currency, "source": source, "reference": reference}
        return self._call("/charges", order, key)

    def refund(self, *, charge: str, amount: int, reference: str, key: str) -> Outcome:
        return self._call(
            "/refunds", {"charge": charge, "amount": amount, "reference": reference}, key
        )

    def close(self) -> None:
        """Close this process's connections; a later call opens new ones."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _call(self, path: str, order: Mapping[str, Any], key: str) -> Outcome:
        body = json.dumps(order).encode()
        doubt: Unknown | None = None
        for attempt in range(1, self.attempts + 1):
            answer = self._attempt(path, body, key)
            if isinstance(answer.outcome, Unknown):
                doubt = doubt or answer.outcome
            elif not isinstance(answer.outcome, NotSent):
                return answer.outcome
            if attempt == self.attempts or not self._repeatable(answer):
                break
            seconds = _wait(attempt, answer.retry_after)
            logger.info("%s again in %.2f s: %s", path, seconds, answer.outcome.reason)
            self._pause(seconds)
        # "Not sent" speaks for its own attempt only: an earlier one may have moved the money.
        return doubt or answer.outcome

    def _attempt(self, path: str, body: bytes, key: str) -> Answer:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            response = self._client().post(self.url + path, content=body, headers=headers)
        except _BEFORE_SENDING as error:
            return Answer(NotSent(f"no connection to the gateway ({_name(error)})"), passing=True)
        except httpx2.RequestError as error:
            return Answer(Unknown(f"no answer from the gateway ({_name(error)})"), passing=True)
        return classify(response.status_code, response.content, response.headers.get("Retry-After"))

    def _repeatable(self, answer: Answer) -> bool:
        if not answer.passing or (answer.retry_after or 0) > RETRY_AFTER_LIMIT:
            return False
        return self.dedupes or isinstance(answer.outcome, NotSent)

    def _client(self) -> httpx2.Client:
        """The client of this process: two processes must never share a connection.

        No lock: a lock held by another thread during a fork would stay locked in the child. Two
        threads may each build a client, but only one is kept, and the other has no connection.
        """
        process = os.getpid()
        client = self._clients.get(process)
        if client is None:
            client = self._clients.setdefault(process, _open_client(self.timeout))
        return client


def _open_client(timeout: float) -> httpx2.Client:
    return httpx2.Client(
        timeout=timeout,
        # No compression: the answers are small, and one thing less can be broken in them.
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        transport=DeadlineTransport(connections=100, idle=20, idle_seconds=15.0),
    )


def _wait(attempt: int, retry_after: int | None) -> float:
    """Seconds before the next attempt; what the gateway asks for is a minimum."""
    if retry_after is not None:
        return retry_after + random.uniform(0, BACKOFF_BASE)  # noqa: S311 - jitter
    return random.uniform(0, min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** (attempt - 1)))  # noqa: S311


def _name(error: Exception) -> str:
    return type(error).__name__


def get_gateway() -> Gateway:
    """The gateway of ``settings.PAYMENTS_GATEWAY``; one object for equal settings.

    ``URL`` (required), ``TIMEOUT`` (5.0 seconds an attempt), ``ATTEMPTS`` (3), ``DEDUPES``
    (True). A missing URL or an unknown name raises ``ImproperlyConfigured``.
    """
    given = dict(settings.PAYMENTS_GATEWAY)
    url = given.pop("URL", None)
    if not url:
        raise ImproperlyConfigured("PAYMENTS_GATEWAY needs a URL")
    timeout = given.pop("TIMEOUT", 5.0)
    attempts = given.pop("ATTEMPTS", 3)
    dedupes = given.pop("DEDUPES", True)
    if given:
        raise ImproperlyConfigured(f"PAYMENTS_GATEWAY: unknown names {', '.join(sorted(given))}")
    return _gateway(url, timeout, attempts, dedupes)


@cache
def _gateway(url: str, timeout: float, attempts: int, dedupes: bool) -> HttpGateway:
    gateway = HttpGateway(url, timeout=timeout, attempts=attempts, dedupes=dedupes)
    atexit.register(gateway.close)
    return gateway
