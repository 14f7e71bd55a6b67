"""The client a merchant would use: what it sends, and what it survives."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx2
import pytest

from idempotency.client.breaker import BreakerOpen, BreakerPolicy, BreakerRegistry, CircuitBreaker
from idempotency.client.classification import Trouble
from idempotency.client.messages import BodyNotRepeatable, Request, new_key
from idempotency.client.policy import CallPolicy
from idempotency.client.safe_client import AsyncSafeClient, SafeClient
from idempotency.client.testing import AsyncScriptedTransport, ScriptedTransport, no_waiting
from idempotency.core.errors import KeyInvalid

URL = "https://api.example.com"


def client_of(*ends: Any, url: str = URL, **options: Any) -> tuple[SafeClient, ScriptedTransport]:
    transport = ScriptedTransport(*ends)
    return SafeClient(url, transport=transport, **options), transport


def sent(method: str, path: str, *, url: str = URL, **given: Any) -> Request:
    """The only request that a client of that URL sent."""
    client, transport = client_of(200, url=url, api_key="sk_1", headers={"X-Team": "a"})
    client.request(method, path, **given)
    (request,) = transport.requests
    return request


# --- What is sent --------------------------------------------------------------------------------


def test_a_json_body_is_sent_with_the_key_the_api_key_and_the_headers() -> None:
    request = sent("post", "/v1/charges", json={"amount": 1, "note": "é"}, idempotency_key="k-1")
    assert (request.method, request.url) == ("POST", f"{URL}/v1/charges")
    assert json.loads(request.body) == {"amount": 1, "note": "é"}
    headers = {
        "accept": "application/json",
        "authorization": "Bearer sk_1",
        "content-type": "application/json",
        "idempotency-key": "k-1",
        "x-team": "a",
    }
    assert {name: request.headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    ("content", "body"),
    [(b"a=1", b"a=1"), ("a=1", b"a=1"), (io.BytesIO(b"a=1"), b"a=1")],
    ids=["bytes", "text", "file"],
)
def test_other_bodies_are_sent_as_they_are(content: Any, body: bytes) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    request = sent("POST", "/v1/charges", content=content, headers=headers)
    assert request.body == body
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize("value", [None, False, 0, [], {}])
def test_an_empty_json_value_is_a_body_too(value: Any) -> None:
    assert json.loads(sent("POST", "/v1/charges", json=value).body) == value


def test_headers_of_one_request_win_over_the_clients_in_any_case() -> None:
    request = sent("GET", "/v1/charges", headers={"X-TEAM": "b"})
    assert [value for name, value in request.headers.items() if name.lower() == "x-team"] == ["b"]


def test_parameters_become_the_query() -> None:
    request = sent("GET", "/v1/charges?limit=2", params={"after": "ch/1"})
    assert request.url in (f"{URL}/v1/charges?limit=2&after=ch%2F1",)


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        (URL, "/v1/charges", f"{URL}/v1/charges"),
        (f"{URL}/", "v1/charges", f"{URL}/v1/charges"),
        (f"{URL}/api", "/v1/charges", f"{URL}/api/v1/charges"),
        (f"{URL}/api/", "/v1/charges", f"{URL}/api/v1/charges"),
        (URL, f"{URL}/v1/charges?cursor=2", f"{URL}/v1/charges?cursor=2"),
    ],
)
def test_paths_are_below_the_base(base: str, path: str, url: str) -> None:
    assert sent("GET", path, url=base).url == url


@pytest.mark.parametrize(
    "path",
    ["https://evil.example/v1", "//evil.example/v1", "http://api.example.com/v1",
     "https://api.example.com:8443/v1"],
)  # fmt: skip
def test_no_other_origin_ever_sees_the_api_key(path: str) -> None:
    client, transport = client_of(200, api_key="sk_1")
    with pytest.raises(ValueError, match="origin"):
        client.get(path)
    assert transport.requests == []


@pytest.mark.parametrize("url", ["api.example.com", "ftp://a.example", "https://", f"{URL}?a=b"])
def test_a_base_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base"):
        SafeClient(url)


def test_what_cannot_be_sent_twice_or_is_no_key_is_refused_before_anything_is_sent() -> None:
    client, transport = client_of(201)
    with pytest.raises(BodyNotRepeatable):
        client.post("/v1/charges", content=iter([b"{}"]))  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="not both"):
        client.post("/v1/charges", json={}, content=b"{}")
    with pytest.raises(ValueError, match="JSON"):
        client.post("/v1/charges", json={"amount": float("nan")})
    with pytest.raises(KeyInvalid):
        client.post("/v1/charges", json={}, idempotency_key="")
    assert transport.requests == []


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_each_method_has_a_name(method: str) -> None:
    client, transport = client_of(200)
    getattr(client, method)("/v1/charges")
    asynchronous = AsyncScriptedTransport(200)

    async def main() -> None:
        async with AsyncSafeClient(URL, transport=asynchronous) as client:
            await getattr(client, method)("/v1/charges")

    asyncio.run(main())
    for request in (*transport.requests, *asynchronous.requests):
        assert request.method == method.upper()
        assert ("idempotency-key" in request.headers) is (method != "get")


# --- What it survives ----------------------------------------------------------------------------

IN_USE = {"code": "idempotency_key_in_use", "retry": "same_key"}


def in_use() -> httpx2.Response:
    headers = {"Content-Type": "application/problem+json", "Retry-After": "1"}
    return httpx2.Response(409, headers=headers, content=json.dumps(IN_USE).encode())


def test_it_survives_a_lost_answer_a_key_in_use_a_rate_limit_and_an_outage_in_one_call() -> None:
    client, transport = client_of(Trouble.READ, in_use(), 429, 503, 201)
    with no_waiting():
        assert client.post("/v1/charges", json={"amount": 1}).status_code == 201
    assert len({(it.body, it.headers["idempotency-key"]) for it in transport.requests}) == 1


def test_so_does_the_asynchronous_one() -> None:
    transport = AsyncScriptedTransport(Trouble.READ, in_use(), 429, 503, 201)

    async def main() -> httpx2.Response:
        async with AsyncSafeClient(URL, transport=transport) as client:
            return await client.post("/v1/charges", json={"amount": 1})

    with no_waiting():
        assert asyncio.run(main()).status_code == 201
    assert len({(it.body, it.headers["idempotency-key"]) for it in transport.requests}) == 1
    assert transport.closed


def test_it_survives_its_own_restart_with_a_key_that_was_kept() -> None:
    """Two processes, as far as the server can see."""
    kept = new_key()
    before, first = client_of(*[Trouble.TIMEOUT] * 5)
    with no_waiting(), pytest.raises(httpx2.ReadTimeout):
        before.post("/v1/charges", json={"amount": 1}, idempotency_key=kept)
    after, second = client_of(201)
    assert after.post("/v1/charges", json={"amount": 1}, idempotency_key=kept).status_code == 201
    keys = [it.headers["idempotency-key"] for it in first.requests + second.requests]
    assert keys == [kept] * 6


def test_without_a_given_key_the_error_has_it_for_a_later_repetition() -> None:
    client, transport = client_of(*[Trouble.TIMEOUT] * 5)
    with no_waiting(), pytest.raises(httpx2.ReadTimeout) as raised:
        client.post("/v1/charges", json={"amount": 1})
    key = raised.value.idempotency_key  # type: ignore[attr-defined]
    assert key == transport.requests[0].headers["idempotency-key"]


def test_a_declined_card_is_an_answer() -> None:
    client, transport = client_of(402)
    assert client.post("/v1/charges", json={}).status_code == 402
    assert len(transport.requests) == 1


def test_a_process_with_little_traffic_can_see_two_charges_a_minute_through() -> None:
    """With the budget's usual floor of one retry a minute it could not see one through."""
    client, _ = client_of(*[503, 503, 503, 503, 201] * 2)
    with no_waiting():
        assert [client.post("/v1/charges").status_code for _ in range(2)] == [201, 201]


def test_policy_and_pieces_can_be_replaced() -> None:
    client, transport = client_of(503, 503, policy=CallPolicy(attempts=2))
    with no_waiting():
        assert client.post("/v1/charges").status_code == 503
    assert len(transport.requests) == 2


def test_its_deadline_is_passed_on() -> None:
    client, transport = client_of(200)
    client.get("/v1/charges", deadline=0.5)
    assert 300 < int(transport.requests[0].headers["x-request-deadline-ms"]) < 500


# --- Operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/charges", "GET /v1/charges"),
        ("/v1/charges/ch_7Qh2", "GET /v1/charges/*"),
        ("/v1/charges/ch_7Qh2/refunds?limit=3", "GET /v1/charges/*/refunds"),
        ("/v1/charges/123", "GET /v1/charges/*"),
        ("/v1/idempotency-keys/", "GET /v1/idempotency-keys/*"),
        ("/", "GET /*"),
    ],
)
def test_an_operation_is_named_without_ids(path: str, operation: str) -> None:
    client, _ = client_of(200)
    client.get(path)
    assert list(client.caller.gears._gears) == [operation]


def test_the_names_of_operations_are_bounded() -> None:
    words = ["".join("abcdefghij"[int(digit)] for digit in f"{n:03}") for n in range(500)]
    client, _ = client_of(*[200] * 500)
    for word in words:
        client.get(f"/{word}")
    assert len(client.caller.gears._gears) == 101


def test_an_operation_that_fails_does_not_stop_the_others() -> None:
    policy = BreakerPolicy(minimum_calls=1)
    breakers = BreakerRegistry(lambda *names: CircuitBreaker(policy))
    client, _ = client_of(500, 201, breakers=breakers, policy=CallPolicy(attempts=1))
    client.get("/v1/reports")
    assert client.post("/v1/charges").status_code == 201
    with pytest.raises(BreakerOpen):
        client.get("/v1/reports")


# --- The kit for users' tests --------------------------------------------------------------------


def test_a_script_that_is_too_short_fails_the_test_that_wrote_it() -> None:
    client, transport = client_of(503)
    with no_waiting(), pytest.raises(AssertionError, match="no end for request 2"):
        client.get("/v1/charges")
    assert transport.finished


def test_a_script_may_raise_anything() -> None:
    client, transport = client_of(ZeroDivisionError(), 200)
    with pytest.raises(ZeroDivisionError):
        client.get("/v1/charges")
    assert not transport.finished


def test_waiting_comes_back_after_the_test() -> None:
    from idempotency.client.caller import Waiting

    with no_waiting(), no_waiting():
        assert Waiting.skipped
    assert not Waiting.skipped
