"""What becomes of a key, by how its handler ended (contract: "What is stored")."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import IntegrityError, transaction
from django.http import Http404
from django.test import Client
from rest_framework import exceptions
from rest_framework.response import Response

from idempotency.http.requests import build_policy
from tests.integration.portable import views
from tests.integration.portable.api import (
    JSON,
    MARKER,
    Api,
    assert_problem,
    assert_replay,
    key_of,
    keys,
)

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])


class PreconditionFailed(exceptions.APIException):
    status_code = 412


class Outage(exceptions.APIException):
    status_code = 503


def behave(behaviour: Callable[[], Any]) -> None:
    views.behaviour = lambda request: behaviour()


def raising(error: Exception) -> Callable[[], Any]:
    def behaviour() -> Any:
        raise error

    return behaviour


RAISED: dict[str, tuple[Callable[[], Exception], int]] = {
    "ValidationError": (lambda: exceptions.ValidationError("no"), 400),
    "ParseError": (exceptions.ParseError, 400),
    # With a session there is nothing to challenge with, so REST framework says 403.
    "NotAuthenticated": (exceptions.NotAuthenticated, 403),
    "PermissionDenied": (exceptions.PermissionDenied, 403),
    "NotFound": (exceptions.NotFound, 404),
    "MethodNotAllowed": (lambda: exceptions.MethodNotAllowed("POST"), 405),
    "PreconditionFailed": (PreconditionFailed, 412),
    "Throttled": (lambda: exceptions.Throttled(wait=3), 429),
    "Http404": (Http404, 404),
    "Django's PermissionDenied": (PermissionDenied, 403),
    "SuspiciousOperation": (SuspiciousOperation, 400),
}
OF_DJANGO = ["Http404", "Django's PermissionDenied", "SuspiciousOperation"]


@pytest.mark.parametrize(
    ("path", "name"),
    [*(("/required", name) for name in RAISED), *(("/plain", name) for name in OF_DJANGO)],
)
def test_a_client_error_that_is_raised_releases_the_key(
    api: Api, path: str, name: str, each_store: str
) -> None:
    error, status = RAISED[name]
    behave(raising(error()))

    refused = api.post(path, {"amount": 0}, "k")

    assert refused.status_code == status
    assert (keys(), views.effects()) == (0, 0)
    views.behaviour = None
    corrected = api.post(path, {"amount": 1}, "k")
    assert corrected.status_code == 201
    assert MARKER not in corrected.headers
    assert key_of("k").attempt == 1


FAILURES = {
    "RuntimeError": RuntimeError("a defect"),
    "IntegrityError": IntegrityError("a defect"),
    "Django's ValidationError": ModelValidationError("nobody turned it into an answer"),
    "APIException": exceptions.APIException(),
    "an outage": Outage(),
    "TypeError": TypeError(),
}


@pytest.mark.parametrize("name", FAILURES)
@BOTH_ADAPTERS
def test_case_34_a_handler_that_raises_is_rolled_back_and_the_retry_runs(
    api: Api, path: str, name: str, each_store: str
) -> None:
    behave(raising(FAILURES[name]))

    assert api.post(path, {"amount": 1}, "k").status_code >= 500

    row = key_of("k")
    assert (row.state, row.attempt, views.effects()) == ("failed", 1, 0)
    assert row.failure == type(FAILURES[name]).__name__
    views.behaviour = None
    assert_problem(api.post(path, {"amount": 2}, "k"), 422, "idempotency_key_reused")
    second = api.post(path, {"amount": 1}, "k")
    assert second.status_code == 201
    assert MARKER not in second.headers
    assert (key_of("k").attempt, views.effects()) == (2, 1)
    assert_replay(api.post(path, {"amount": 1}, "k"), second)


@BOTH_ADAPTERS
@pytest.mark.parametrize("status", [200, 201, 202, 204, 302, 400, 402, 404, 409, 410, 422])
def test_an_outcome_that_is_returned_is_stored(
    api: Api, path: str, status: int, each_store: str
) -> None:
    behave(lambda: Response({"outcome": status} if status != 204 else None, status=status))

    first = api.post(path, {}, "k")

    assert first.status_code == status
    assert (key_of("k").state, views.effects()) == ("succeeded", 1)
    views.behaviour = None
    assert_replay(api.post(path, {}, "k"), first)


@BOTH_ADAPTERS
def test_an_answer_that_could_not_be_sent_again_is_rolled_back(
    api: Api, path: str, each_store: str
) -> None:
    def answer() -> Response:
        response = Response({})
        response.status_code = 42  # what Django only looks at when it is made
        return response

    behave(answer)

    assert api.post(path, {}, "k").status_code == 500

    assert (key_of("k").state, views.effects()) == ("failed", 0)


@BOTH_ADAPTERS
@pytest.mark.parametrize("status", [401, 403, 408, 412, 425, 428, 429])
def test_a_refusal_that_is_returned_is_rolled_back_and_releases_the_key(
    api: Api, path: str, status: int, each_store: str
) -> None:
    behave(lambda: Response({"code": "not now"}, status=status, headers={"Retry-After": "1"}))

    refused = api.post(path, {"amount": 0}, "k")

    assert (refused.status_code, refused.json()) == (status, {"code": "not now"})
    assert refused["Retry-After"] == "1"
    assert (keys(), views.effects()) == (0, 0)
    views.behaviour = None
    assert api.post(path, {"amount": 1}, "k").status_code == 201


@BOTH_ADAPTERS
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_failure_that_is_returned_is_rolled_back_and_only_the_same_request_may_run(
    api: Api, path: str, status: int, each_store: str
) -> None:
    behave(lambda: Response({"code": "sorry"}, status=status))

    failed = api.post(path, {"amount": 1}, "k")

    assert (failed.status_code, failed.json()) == (status, {"code": "sorry"})
    assert (key_of("k").state, views.effects()) == ("failed", 0)
    views.behaviour = None
    assert_problem(api.post(path, {"amount": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post(path, {"amount": 1}, "k").status_code == 201


def swallow() -> None:
    """Have Django mark the transaction for rollback, and say nothing."""
    Group.objects.create(name="taken")
    with contextlib.suppress(IntegrityError):
        Group.objects.create(name="taken")


MARKED = {"a swallowed error": swallow, "marked": lambda: transaction.set_rollback(True)}


@BOTH_ADAPTERS
@pytest.mark.parametrize("how", MARKED)
def test_a_success_whose_work_is_marked_for_rollback_is_a_failure(
    api: Api, path: str, how: str, each_store: str
) -> None:
    def done() -> Response:
        MARKED[how]()
        return Response({"id": 1}, status=201)

    behave(done)

    assert api.post(path, {}, "k").status_code == 500

    assert (key_of("k").state, views.effects()) == ("failed", 0)
    assert key_of("k").failure == "TransactionManagementError"
    views.behaviour = None
    assert api.post(path, {}, "k").status_code == 201


@BOTH_ADAPTERS
def test_a_refusal_whose_work_the_handler_rolled_back_is_not_stored(
    api: Api, path: str, each_store: str
) -> None:
    def refuse() -> Response:
        transaction.set_rollback(True)
        return Response({"code": "declined"}, status=402)

    behave(refuse)

    assert api.post(path, {}, "k").status_code == 402

    assert (keys(), views.effects()) == (0, 0)
    views.behaviour = None
    assert api.post(path, {}, "k").status_code == 201


@BOTH_ADAPTERS
def test_a_failure_whose_work_the_handler_rolled_back_is_a_failure(api: Api, path: str) -> None:
    def fail() -> Response:
        transaction.set_rollback(True)
        return Response(status=500)

    behave(fail)

    assert api.post(path, {}, "k").status_code == 500

    assert (key_of("k").state, views.effects()) == ("failed", 0)


@BOTH_ADAPTERS
def test_an_inner_block_that_was_rolled_back_does_not_take_the_answer_along(
    api: Api, path: str, each_store: str
) -> None:
    def declined() -> Response:
        try:
            with transaction.atomic():
                Group.objects.create(name="taken back")
                raise ValueError("declined")
        except ValueError:
            return Response({"code": "declined"}, status=402)

    behave(declined)

    first = api.post(path, {}, "k")

    assert first.status_code == 402
    assert_replay(api.post(path, {}, "k"), first)
    assert not Group.objects.filter(name="taken back").exists()
    assert views.effects() == 1


@pytest.mark.parametrize(
    ("status", "stored"), [(402, True), (429, True), (404, False), (422, False), (201, True)]
)
def test_a_policy_chooses_which_client_errors_are_stored(
    api: Api, status: int, stored: bool
) -> None:
    behave(lambda: Response({}, status=status))

    assert api.post("/some-statuses", {}, "k").status_code == status

    assert (keys(), views.effects()) == ((1, 1) if stored else (0, 0))


BEFORE_THE_CLAIM = {
    "no such route": ("POST", "/nowhere", b"{}", {}, 404),
    "405": ("DELETE", "/required", b"{}", {}, 405),
    "405 of a method with a key": ("PATCH", "/unprotected", b"{}", {}, 405),
    "406": ("POST", "/required", b"{}", {"Accept": "image/png"}, 406),
    "415": ("POST", "/json-only", b"a=1", {"content_type": "text/csv"}, 415),
    "415 of a form": (
        "POST",
        "/json-only",
        b"a=1",
        {"content_type": "application/x-www-form-urlencoded"},
        415,
    ),
    "a body that cannot be parsed": ("POST", "/required", b'{"a":', {}, 400),
    "a form that cannot be parsed": (
        "POST",
        "/required",
        b"a",
        {"content_type": "multipart/form-data"},
        400,
    ),
    "nobody": ("POST", "/guarded", b"{}", {}, 403),
    "chunked without a length": (
        "POST",
        "/required",
        b"",
        {"Transfer_Encoding": "chunked"},
        411,
    ),
    "chunked without a length, plain": (
        "POST",
        "/plain",
        b"",
        {"Transfer_Encoding": "chunked"},
        411,
    ),
}


@pytest.mark.parametrize("name", BEFORE_THE_CLAIM)
def test_a_request_that_is_refused_before_the_claim_leaves_no_row(api: Api, name: str) -> None:
    method, path, body, options, status = BEFORE_THE_CLAIM[name]

    refused = api.send(method, path, body, "k", **options)

    assert refused.status_code == status
    assert views.calls == []
    assert keys() == 0


def test_a_chunked_body_without_a_length_is_a_411_that_says_what_to_do(api: Api) -> None:
    refused = api.post("/required", b"", "k", Transfer_Encoding="gzip, Chunked")

    assert_problem(refused, 411, "length_required", retry="same_key")


@BOTH_ADAPTERS
@pytest.mark.parametrize(
    "content_type",
    [JSON, "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"],
)
def test_a_body_that_is_too_large_is_a_413_without_a_row(
    api: Api, path: str, content_type: str, settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    body = {
        JSON: b'{"a":"' + b"x" * 200 + b'"}',
        "application/x-www-form-urlencoded": b"a=" + b"x" * 200,
    }.get(
        content_type,
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 200 + b"\r\n--b--\r\n",
    )

    refused = api.post(path, body, "k", content_type=content_type)

    assert refused.status_code == 413
    assert views.calls == []
    assert keys() == 0


def test_parsing_comes_before_the_key(api: Api) -> None:
    assert api.post("/required", b'{"a":').status_code == 400
    assert api.post("/required", b'{"a":').headers.get("Content-Type") == JSON


def test_the_mismatch_comes_before_a_precondition_of_the_handler(api: Api) -> None:
    first = api.post("/required", {"a": 1}, "k", If_Match='"1"')
    behave(raising(PreconditionFailed()))

    # A replay never turns into a 412: the handler, which asks for the version, does not run.
    assert_replay(api.post("/required", {"a": 1}, "k", If_Match='"1"'), first)
    assert_problem(api.post("/required", {"a": 2}, "k"), 422, "idempotency_key_reused")
    assert api.post("/required", {"a": 2}, "other").status_code == 412


UNKEYED = {
    201: (lambda: Response({}, status=201), 1),
    402: (lambda: Response({}, status=402), 1),
    429: (lambda: Response({}, status=429), 0),
    503: (lambda: Response({}, status=503), 0),
    500: (raising(RuntimeError()), 0),
    400: (raising(exceptions.ValidationError("no")), 0),
}


@pytest.mark.parametrize("status", UNKEYED)
def test_without_a_key_the_same_endings_keep_or_roll_back_the_work(api: Api, status: int) -> None:
    behaviour, effects = UNKEYED[status]
    behave(behaviour)

    assert api.post("/things", {}).status_code == status

    assert views.effects() == effects
    assert keys() == 0


def test_without_a_key_a_success_whose_work_is_marked_for_rollback_is_a_failure(api: Api) -> None:
    def done() -> Response:
        swallow()
        return Response({}, status=201)

    behave(done)

    assert api.post("/things", {}).status_code == 500
    assert views.effects() == 0


def test_without_a_key_a_stream_is_given_as_it_is(api: Api) -> None:
    from django.http import StreamingHttpResponse

    behave(lambda: StreamingHttpResponse(iter([b"one"])))

    assert b"".join(api.post("/things", {}).streaming_content) == b"one"
    assert views.effects() == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/set/"),
        ("PUT", "/set/7/"),
        ("DELETE", "/set/7/"),
        ("POST", "/set/7/refund/"),
        ("POST", "/some/7/refund/"),
    ],
)
def test_the_actions_of_a_viewset_are_protected(api: Api, method: str, path: str) -> None:
    first = api.send(method, path, {"amount": 1}, "k")

    assert first.status_code < 300
    assert_replay(api.send(method, path, {"amount": 1}, "k"), first)
    assert_problem(api.send(method, path, {"amount": 2}, "k"), 422, "idempotency_key_reused")
    assert views.effects() == 1


def test_actions_of_a_viewset_are_scopes_of_their_own(api: Api) -> None:
    for method, path in (
        ("POST", "/set/"),
        ("PUT", "/set/7/"),
        ("DELETE", "/set/7/"),
        ("POST", "/set/7/refund/"),
    ):
        assert api.send(method, path, {}, "k").status_code < 300
    assert views.effects() == 4
    assert_problem(api.post("/set/8/refund/", {}, "k"), 422, "idempotency_key_reused")


def test_an_action_that_is_not_listed_takes_no_key(api: Api) -> None:
    for _ in range(2):
        assert api.post("/some/", {}, "mal,formed").status_code == 201
    assert api.send("GET", "/some/", key="mal,formed").status_code == 200
    assert (keys(), views.effects()) == (0, 2)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_put_and_delete_take_no_key_unless_the_policy_says_so(api: Api, method: str) -> None:
    assert api.send(method, "/things", {}, "mal,formed").status_code in (201, 405)
    assert keys() == 0


def test_a_key_belongs_to_the_account_and_not_to_the_credential(api: Api) -> None:
    User.objects.create_user("member", password="secret")
    session = Client(raise_request_exception=False)
    assert session.login(username="member", password="secret")

    first = Api(session).post("/guarded", {}, "k")

    basic = "Basic bWVtYmVyOnNlY3JldA=="
    assert_replay(Api().post("/guarded", {}, "k", Authorization=basic), first)


def test_every_handler_has_a_request_idempotency(api: Api) -> None:
    seen = []
    views.behaviour = lambda request: (seen.append(request.idempotency), Response({}))[1]

    api.post("/set/", {}, "k")
    api.post("/things", {})
    api.send("PUT", "/things", {}, "k")

    assert [execution is None for execution in seen] == [False, True, True]


def test_a_policy_given_to_as_view_is_refused() -> None:
    class Optional(views.ThingView):
        idempotency_required = False

    with pytest.raises(ImproperlyConfigured, match="idempotency_required must be set on the class"):
        Optional.as_view(idempotency_required=True)


def test_a_policy_for_a_safe_method_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="holds GET"):
        build_policy({"methods": ["get", "POST"]})


def test_an_action_of_a_safe_method_takes_no_key() -> None:
    class Listing(views.ThingViewSet):
        idempotency_actions = frozenset({"list", "create"})

    policy = Listing.get_idempotency_policy()
    assert not Listing.takes_idempotency_key("GET", "list", policy)
    assert Listing.takes_idempotency_key("POST", "create", policy)
