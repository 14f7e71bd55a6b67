"""Contract cases 9 to 17: every retry gets the first answer."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import FileResponse, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client
from rest_framework.response import Response

from tests.integration.portable import views
from tests.integration.portable.api import (
    JSON,
    MARKER,
    PATIENCE,
    Api,
    Gate,
    assert_problem,
    assert_replay,
    key_of,
    keys,
)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])


def answer(response: Callable[[], Any]) -> None:
    """Let the views do their work and answer with this."""
    views.behaviour = lambda request: response()


@BOTH_ADAPTERS
def test_case_09_a_replay_has_the_same_bytes_status_and_headers(
    api: Api, path: str, each_store: str
) -> None:
    def response() -> Response:
        headers = {"Location": "/things/7", "ETag": '"abc"', "Vary": "Accept"}
        return Response({"é": [1.50, None]}, status=201, headers=headers)

    answer(response)
    first = api.post(path, {"amount": 1}, "k")
    views.behaviour = None
    again = api.post(path, {"amount": 1}, "k")

    assert first.status_code == 201
    assert_replay(again, first)
    for name in ("Content-Type", "Location", "ETag", "Vary"):
        assert again[name] == first[name]
    assert views.effects() == len(views.calls) == 1


def test_case_09_a_second_replay_is_like_the_first(api: Api) -> None:
    first = api.post("/things", {"amount": 1}, "k")

    replays = [api.post("/things", {"amount": 1}, "k") for _ in range(3)]

    for again in replays:
        assert_replay(again, first)
    assert views.effects() == 1


@pytest.mark.parametrize("status", [301, 302, 400, 402, 404, 409, 410, 418, 422])
@BOTH_ADAPTERS
def test_case_09_a_client_error_that_is_returned_is_an_answer_too(
    api: Api, path: str, status: int
) -> None:
    answer(lambda: Response({"code": "declined"}, status=status, headers={"Location": "/x"}))

    first = api.post(path, {}, "k")

    assert first.status_code == status
    assert_replay(api.post(path, {}, "k"), first)
    assert views.effects() == 1


ODD_ANSWERS: dict[str, Callable[[], Any]] = {
    "204": lambda: HttpResponse(status=204),
    "204 of REST framework": lambda: Response(status=204),
    "an empty 200": lambda: HttpResponse(b""),
    "an empty 201 without a type": lambda: _without_type(HttpResponse(status=201)),
    "202 and a Location": lambda: Response(status=202, headers={"Location": "/jobs/1"}),
    "text": lambda: HttpResponse("héllo", content_type="text/plain; charset=latin-1"),
    "bytes that are no UTF-8": lambda: HttpResponse(
        b"\xff\x00\xfe", content_type="application/octet-stream"
    ),
    "JSON with a NUL and twice a name": lambda: HttpResponse(
        b'{"a":1,"a":2,"b":"\\u0000"}', content_type=JSON
    ),
    "a header with commas": lambda: HttpResponse(
        "x", headers={"Link": '</a>; rel="a", </b>; rel="b"', "Allow": "GET, POST"}
    ),
    "a header that is not ASCII": lambda: HttpResponse("x", headers={"X-Name": "Zoë"}),
    "a reason of its own": lambda: HttpResponse(status=299, reason="Sort of"),
}


def _without_type(response: HttpResponse) -> HttpResponse:
    del response["Content-Type"]
    return response


@BOTH_ADAPTERS
@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_case_10_empty_bodies_bytes_and_odd_headers_are_replayed(
    api: Api, path: str, name: str, each_store: str
) -> None:
    answer(ODD_ANSWERS[name])

    first = api.post(path, {}, "k")
    again = api.post(path, {}, "k")

    assert first.status_code < 400
    assert_replay(again, first)
    assert kept_headers(again) == kept_headers(first)
    assert views.effects() == 1


def kept_headers(response: Any) -> dict[str, str]:
    """Without the marker, and without the id that the project's middleware gives each exchange."""
    return {name: value for name, value in response.items() if name not in (MARKER, "X-Request-ID")}


FRESH = {
    "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
    "Retry-After": "120",
    "RateLimit": '"default";r=1;t=30',
    "RateLimit-Policy": '"default";q=100;w=60',
    "X-RateLimit-Remaining": "7",
    "X-Request-ID": "1",
    "X-Correlation-ID": "2",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "Access-Control-Allow-Origin": "https://one.example",
    "Access-Control-Expose-Headers": "ETag",
    "Keep-Alive": "timeout=5",
    "Transfer-Encoding": "identity",
    "Connection": "close, X-Hop",
    "X-Hop": "1",
}


@BOTH_ADAPTERS
def test_case_11_cookies_dates_limits_and_ids_are_not_replayed(api: Api, path: str) -> None:
    def response() -> HttpResponse:
        made = HttpResponse("ok", headers=FRESH | {"X-Kept": "1"})
        made.set_cookie("session", "of the first caller")
        return made

    answer(response)
    first = api.post(path, {}, "k")
    again = api.post(path, {}, "k")

    assert_replay(again, first)
    assert first.cookies["session"].value == "of the first caller"
    assert not again.cookies
    assert [name for name, value in FRESH.items() if again.headers.get(name) == value] == []
    assert again["X-Kept"] == "1"


def test_case_12_the_first_answer_stands_when_the_resource_is_gone(api: Api) -> None:
    first = api.post("/things", {}, "k")
    Group.objects.all().delete()

    again = api.post("/things", {}, "k")

    assert_replay(again, first)
    assert again["Location"] == first["Location"]
    assert views.effects() == 0


@pytest.mark.django_db(transaction=True)
def test_case_13_a_client_that_left_before_the_answer_gets_it_on_the_retry(
    api: Api, live_server: Any
) -> None:
    gate = Gate()
    views.before_work = gate
    host, port = live_server.thread.host, live_server.thread.port
    body = b'{"amount":1}'
    head = (
        f"POST /things HTTP/1.1\r\nHost: {host}\r\nIdempotency-Key: k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )

    with socket.create_connection((host, port), timeout=PATIENCE) as caller:
        caller.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        gate.wait_until_reached()
    # The caller is gone; its work has not begun.
    gate.open()
    views.before_work = None
    with socket.create_connection((host, port), timeout=PATIENCE) as caller:
        again = _ask_until_settled(caller, head, body)

    assert b" 201 " in again.partition(b"\r\n")[0]
    assert b"Idempotent-Replayed: true" in again
    assert views.effects() == len(views.calls) == 1


def _ask_until_settled(caller: socket.socket, head: str, body: bytes) -> bytes:
    """Repeat the request while the first one still runs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        caller.sendall(f"{head}\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            received = caller.recv(65536)
            assert received, "the server closed the connection"
            answer += received
        if b" 409 " not in answer.partition(b"\r\n")[0]:
            return answer
    raise AssertionError("the first request never ended")


@pytest.fixture
def member(api: Api) -> Client:
    User.objects.create_user("member", password="secret")
    client = Client(raise_request_exception=False)
    assert client.login(username="member", password="secret")
    return client


def test_case_14_after_logging_out_the_stored_answer_is_not_given(member: Client) -> None:
    api = Api(member)
    assert api.post("/guarded", {}, "k").status_code == 201
    member.logout()

    again = api.post("/guarded", {}, "k")

    assert again.status_code in (401, 403)
    assert MARKER not in again.headers
    assert b'"id"' not in again.content


def test_case_14_a_permission_revoked_since_is_a_403(member: Client) -> None:
    api = Api(member)
    first = api.post("/guarded", {}, "k")
    views.permitted = False
    refused = api.post("/guarded", {}, "k")
    views.permitted = True

    assert refused.status_code == 403
    assert MARKER not in refused.headers
    assert_replay(api.post("/guarded", {}, "k"), first)


def test_case_14_the_permission_comes_before_a_malformed_key(member: Client) -> None:
    views.permitted = False

    assert Api(member).post("/guarded", {}, "mal,formed").status_code == 403


def test_case_15_another_acceptable_type_gets_the_stored_representation(api: Api) -> None:
    first = api.post("/formats", {}, "k", Accept="text/shouting")

    again = api.post("/formats", {}, "k", Accept=JSON)

    assert first["Content-Type"].startswith("text/shouting")
    assert_replay(again, first)
    assert again["Content-Type"] == first["Content-Type"]


def test_case_15_an_unacceptable_type_is_a_406_before_the_look_up(api: Api) -> None:
    first = api.post("/formats", {}, "k", Accept=JSON)

    refused = api.post("/formats", {}, "k", Accept="image/png")
    unknown = api.post("/formats", {}, "k2", Accept="image/png")

    assert (refused.status_code, unknown.status_code) == (406, 406)
    assert MARKER not in refused.headers
    assert keys() == 1
    assert_replay(api.post("/formats", {}, "k", Accept=JSON), first)


def test_case_15_a_page_of_the_browsable_api_is_replayed(api: Api) -> None:
    first = api.post("/formats", {}, "k", Accept="text/html")

    assert first.status_code == 201
    assert b"<html" in first.content
    assert_replay(api.post("/formats", {}, "k", Accept="text/html"), first)


def test_case_16_when_throttled_now_it_is_a_429_and_the_row_is_untouched(member: Client) -> None:
    api = Api(member)
    first = api.post("/guarded", {}, "k")
    before = key_of("k").__dict__ | {"_state": None}
    views.throttled = True

    refused = api.post("/guarded", {}, "k")

    assert refused.status_code == 429
    assert key_of("k").__dict__ | {"_state": None} == before
    views.throttled = False
    assert_replay(api.post("/guarded", {}, "k"), first)


def template_response() -> TemplateResponse:
    template = engines["django"].from_string("hello {{ name }}")
    return TemplateResponse(None, template, {"name": "you"})  # type: ignore[arg-type]


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: HttpResponse("plain", status=201), id="HttpResponse"),
        pytest.param(lambda: JsonResponse({"a": 1}, status=201), id="JsonResponse"),
        pytest.param(template_response, id="TemplateResponse"),
    ],
)
def test_case_17_a_response_of_django_is_kept_and_replayed(
    api: Api, path: str, made: Callable[[], Any]
) -> None:
    answer(made)

    first = api.post(path, {}, "k")

    assert first.status_code < 300
    assert_replay(api.post(path, {}, "k"), first)
    assert views.effects() == 1


def streamed() -> StreamingHttpResponse:
    return StreamingHttpResponse(
        iter([b"one ", b"two"]), status=201, headers={"Location": "/things/7"}
    )


def file() -> FileResponse:
    return FileResponse(
        io.BytesIO(b"one two"), status=201, filename="a.txt", headers={"Location": "/things/7"}
    )


@BOTH_ADAPTERS
@pytest.mark.parametrize("made", [streamed, file])
def test_case_17_a_streamed_response_is_given_once_and_then_is_not_stored(
    api: Api, path: str, made: Callable[[], Any], each_store: str
) -> None:
    answer(made)

    first = api.post(path, {}, "k")
    assert first.status_code == 201
    assert b"".join(first.streaming_content) == b"one two"

    for _ in range(2):
        problem = assert_problem(api.post(path, {}, "k"), 409, "response_not_stored", retry="never")
        assert problem["resource"] == "/things/7"
    assert views.effects() == len(views.calls) == 1


@pytest.mark.parametrize("size", [64, 65])
def test_case_17_only_a_response_above_the_limit_is_not_stored(
    api: Api, size: int, each_store: str
) -> None:
    answer(lambda: HttpResponse(b"x" * size, status=201))

    first = api.post("/small-answers", {}, "k")
    again = api.post("/small-answers", {}, "k")

    assert (first.status_code, first.content) == (201, b"x" * size)
    if size == 64:
        assert_replay(again, first)
    else:
        problem = assert_problem(again, 409, "response_not_stored")
        assert "resource" not in problem
    assert views.effects() == 1


@BOTH_ADAPTERS
def test_case_17_a_streamed_answer_whose_status_has_no_body_is_replayed(
    api: Api, path: str
) -> None:
    answer(lambda: StreamingHttpResponse(iter(()), status=204))

    assert api.post(path, {}, "k").status_code == 204

    again = api.post(path, {}, "k")
    assert again.status_code == 204
    assert again[MARKER] == "true"


@BOTH_ADAPTERS
def test_case_17_a_stored_response_that_is_gone_is_never_run_again(
    api: Api, path: str, each_store: str
) -> None:
    from idempotency.models import StoredResponse

    api.post(path, {}, "k")
    StoredResponse.objects.all().delete()

    assert_problem(api.post(path, {}, "k"), 409, "response_not_stored", retry="never")
    assert views.effects() == 1


@BOTH_ADAPTERS
@pytest.mark.parametrize("made", [None, "text", object], ids=str)
def test_case_17_what_is_no_response_is_rolled_back(api: Api, path: str, made: Any) -> None:
    answer(lambda: made)

    assert api.post(path, {}, "k").status_code == 500

    assert views.effects() == 0
    assert key_of("k").state == "failed"


@BOTH_ADAPTERS
def test_case_17_a_template_that_fails_takes_the_work_back(api: Api, path: str) -> None:
    template = engines["django"].from_string("{% include missing %}")
    answer(lambda: TemplateResponse(None, template, {}))  # type: ignore[arg-type]

    assert api.post(path, {}, "k").status_code == 500

    assert views.effects() == 0
