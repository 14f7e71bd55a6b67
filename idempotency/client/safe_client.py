"""A client for an API that honours idempotency keys, such as the server half of this package.

::

    from idempotency.client import SafeClient, new_key

    order.key = order.key or new_key()  # kept before the call: it survives a restart of ours
    order.save()
    with SafeClient("https://api.example.com", api_key="sk_...") as client:
        answer = client.post("/v1/charges", json={...}, idempotency_key=order.key)

A lost answer, 409 *in use*, 429 and 503 are met by sending the same request again, after the wait
that the server asks for. What comes back is the answer to the last attempt; 402 or 422 are answers,
too. Where no answer came at all, the exception is httpx2's own, with ``attempts`` (what happened)
and ``idempotency_key`` on it: repeat the call later with the same key.

Needs ``httpx2`` (the extra ``client``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import httpx2

from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.caller import AsyncCaller, Caller
from idempotency.client.deadline import Deadline
from idempotency.client.httpx2_transports import AsyncHttpx2Transport, Httpx2Transport
from idempotency.client.messages import Content, Request, lowered, read_body
from idempotency.client.policy import CallPolicy, Options
from idempotency.client.transports import AsyncTransport, Transport

__all__ = ["AsyncSafeClient", "SafeClient"]

#: Five attempts: the answer is lost, the key is in use, the rate is limited, the server restarts.
POLICY = CallPolicy(attempts=5, deadline=60.0)
#: A process with one charge a minute must be able to see it through; the ratio still bounds the
#: load of one that is busy.
BUDGET = BudgetPolicy(ratio=0.1, floor=10)

#: Operations with a breaker of their own.
_MOST_OPERATIONS = 100
#: What names a collection or an action; everything else in a path is taken for an id.
_NAME = re.compile(r"v[0-9]+|[a-z][a-z_-]{0,39}")


class Given(TypedDict, total=False):
    """What the methods of both clients take, by keyword."""

    #: Anything that ``json.dumps`` takes.
    json: Any
    #: Bytes, text, or a seekable binary file; in place of ``json``.
    content: Content | None
    params: Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    #: Of this intent. One is made for an unsafe method without, and lost with the process.
    idempotency_key: str | None
    #: Seconds for everything, or the deadline of the request that this call is made for.
    deadline: Deadline | float | None


class _Requests:
    """Makes requests to one API out of what its methods are given."""

    def __init__(self, base_url: str, api_key: str | None, headers: Mapping[str, str] | None):
        url = httpx2.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise ValueError(f"not the base of an HTTP API: {base_url!r}")
        #: Names the other side in breakers, logs and metrics.
        self.dependency = url.host if url.port is None else f"{url.host}:{url.port}"
        self._base = url.copy_with(raw_path=url.raw_path.rstrip(b"/") + b"/")
        self._headers = {"accept": "application/json", **lowered(headers or {})}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._operations: set[str] = set()

    def make(self, method: str, path: str, given: Given) -> Request:
        """The request, with its body as the bytes that every attempt sends."""
        content, params = given.get("content"), given.get("params")
        if "json" in given and content is not None:
            raise ValueError("json or content, not both")
        url = self._url(path)
        if params:
            url = url.copy_merge_params(params)
        headers = {**self._headers, **lowered(given.get("headers") or {})}
        body = b"" if content is None else read_body(content)
        if "json" in given:
            headers.setdefault("content-type", "application/json")
            body = json.dumps(given["json"], allow_nan=False, separators=(",", ":")).encode()
        return Request(method.upper(), str(url), headers, body)

    def call(self, request: Request, given: Given) -> dict[str, Any]:
        """The arguments of ``Caller.call`` beside the request."""
        return {
            "operation": self.operation(request),
            "key": given.get("idempotency_key"),
            "deadline": given.get("deadline"),
        }

    def operation(self, request: Request) -> str:
        """A name for the request's kind, without its ids: ``POST /v1/charges/*/refunds``.

        One breaker for the whole API would let a report that fails stop the payments. Names are
        bounded, whatever paths are used: beyond a hundred there is ``other``.
        """
        segments = httpx2.URL(request.url).path.split("/")[1:]
        kind = "/".join(part if _NAME.fullmatch(part) else "*" for part in segments)
        name = f"{request.method} /{kind}"
        if name not in self._operations:
            if len(self._operations) >= _MOST_OPERATIONS:
                return "other"
            self._operations.add(name)
        return name

    def _url(self, path: str) -> httpx2.URL:
        """Below the base; a whole URL, as pages link to the next one, only of the same origin."""
        base = self._base
        if path.startswith("/") and not path.startswith("//"):
            path = path[1:]
        url = base.join(path)
        if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
            raise ValueError("this URL is of another origin, which must not see the API key")
        return url


class SafeClient:
    """One API. Share it between threads; close it, or use it as a context manager.

    ``api_key`` is sent as ``Authorization: Bearer``; ``headers`` with every request. ``policy`` is
    5 attempts of 5 s within 60 s unless given; the budget is a tenth of the first attempts, and 10
    retries a minute in any case. ``options`` are those of ``Caller``.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport[httpx2.Response] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._requests = _Requests(base_url, api_key, headers)
        options.setdefault("policy", POLICY)
        options.setdefault("budget", RetryBudget(BUDGET))
        #: Makes the calls; its ``perform`` tells the history of one that succeeds, too.
        self.caller: Caller[httpx2.Response] = Caller(
            transport or Httpx2Transport(), self._requests.dependency, **options
        )

    def request(self, method: str, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """Send a request as often as it takes, and return the last answer.

        ``path`` is below the base URL; for the rest see ``Given``. Raises ``httpx2.RequestError``
        where no answer came, ``BreakerOpen`` and ``DeadlineExceeded`` where nothing was sent,
        ``BodyNotRepeatable``, ``KeyInvalid``, and ``ValueError`` for a URL of another origin.
        """
        request = self._requests.make(method, path, given)
        return self.caller.call(request, **self._requests.call(request, given))

    def get(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """GET; see ``request``."""
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """POST; see ``request``."""
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """PUT; see ``request``."""
        return self.request("PUT", path, **given)

    def patch(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """PATCH; see ``request``."""
        return self.request("PATCH", path, **given)

    def delete(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """DELETE; see ``request``."""
        return self.request("DELETE", path, **given)

    def close(self) -> None:
        """Close every connection."""
        self.caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class AsyncSafeClient:
    """``SafeClient`` for the tasks of one event loop of asyncio."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: AsyncTransport[httpx2.Response] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._requests = _Requests(base_url, api_key, headers)
        options.setdefault("policy", POLICY)
        options.setdefault("budget", RetryBudget(BUDGET))
        #: Makes the calls; its ``perform`` tells the history of one that succeeds, too.
        self.caller: AsyncCaller[httpx2.Response] = AsyncCaller(
            transport or AsyncHttpx2Transport(), self._requests.dependency, **options
        )

    async def request(self, method: str, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """As ``SafeClient.request``."""
        request = self._requests.make(method, path, given)
        return await self.caller.call(request, **self._requests.call(request, given))

    async def get(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """GET; see ``SafeClient.request``."""
        return await self.request("GET", path, **given)

    async def post(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """POST; see ``SafeClient.request``."""
        return await self.request("POST", path, **given)

    async def put(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """PUT; see ``SafeClient.request``."""
        return await self.request("PUT", path, **given)

    async def patch(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """PATCH; see ``SafeClient.request``."""
        return await self.request("PATCH", path, **given)

    async def delete(self, path: str, **given: Unpack[Given]) -> httpx2.Response:
        """DELETE; see ``SafeClient.request``."""
        return await self.request("DELETE", path, **given)

    async def aclose(self) -> None:
        """Wait for what ends in the background, and close every connection."""
        await self.caller.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()
