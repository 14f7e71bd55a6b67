"""Views the portable suites protect. Their effect is a row in a table every project has: auth's
Group."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group
from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import viewsets
from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.decorators import action
from rest_framework.parsers import JSONParser
from rest_framework.permissions import AllowAny, BasePermission, IsAuthenticated
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from idempotency.http.decorators import idempotent
from idempotency.rest_framework import IdempotencyMixin
from idempotency.rest_framework.views import IdempotencyKeyView
from tests.integration.portable.elsewhere import Buy, BuyOnce

#: What the next call of a view does instead of its usual answer; a test sets it.
behaviour: Callable[[Any], Any] | None = None
#: Called before the first statement of the work.
before_work: Callable[[], None] | None = None
#: Calls of a handler, whether or not their work was committed.
calls: list[Any] = []
#: Permission and throttle of GuardedView: what they say now.
permitted = True
throttled = False
_lock = threading.Lock()


def reset() -> None:
    global behaviour, before_work, permitted, throttled
    behaviour = before_work = None
    permitted, throttled = True, False
    calls.clear()


def effects() -> int:
    """Rows that were committed."""
    return Group.objects.count()


def work(request: Any) -> Any:
    """One INSERT, then what the test asked for."""
    with _lock:
        calls.append(request)
    if before_work is not None:
        before_work()
    group = Group.objects.create(name=uuid.uuid4().hex)
    if behaviour is not None:
        return behaviour(request)
    return Response({"id": group.pk}, status=201, headers={"Location": f"/things/{group.pk}"})


class ThingView(IdempotencyMixin, APIView):
    permission_classes = (AllowAny,)
    authentication_classes = (SessionAuthentication, BasicAuthentication)

    def get(self, request: Any) -> Response:
        return Response({"key": request.headers.get("Idempotency-Key")})

    def post(self, request: Any, **kwargs: Any) -> Any:
        return work(request)

    def patch(self, request: Any) -> Any:
        return work(request)

    def put(self, request: Any) -> Any:
        return work(request)


class RequiredView(ThingView):
    idempotency_required = True


class UnprotectedView(APIView):
    permission_classes = (AllowAny,)

    def post(self, request: Any) -> Any:
        return work(request)


class IsPermitted(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return permitted


class IsThrottled(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return not throttled


class GuardedView(ThingView):
    """Asks who it is, whether they may, and whether they have not come too often."""

    permission_classes = (IsAuthenticated, IsPermitted)
    throttle_classes = (IsThrottled,)


class Shouting(BaseRenderer):
    media_type = "text/shouting"
    format = "shouting"

    def render(self, data: Any, *_: Any) -> bytes:
        return str(data).upper().encode()


class ManyFormatsView(ThingView):
    renderer_classes = (JSONRenderer, Shouting, BrowsableAPIRenderer)


class JsonOnlyView(ThingView):
    parser_classes = (JSONParser,)


class BodyFieldView(RequiredView):
    idempotency_body_field = "client_token"


class LongKeyView(ThingView):
    idempotency_key_min_length = 16


class UuidView(ThingView):
    idempotency_key_uuid_only = True


class TenantScopedView(ThingView):
    idempotency_scope = "tenant"


class ExcludingView(ThingView):
    idempotency_fingerprint_exclude = ("sent_at",)


class RawView(ThingView):
    idempotency_fingerprint = "raw"


class SmallAnswersView(ThingView):
    idempotency_max_response_bytes = 64


class SomeStatusesView(ThingView):
    idempotency_stored_statuses = (402, 429)


class WaitingView(ThingView):
    idempotency_busy = "wait"
    idempotency_wait = 10


class ImpatientView(ThingView):
    idempotency_busy = "wait"
    idempotency_wait = 0.05


class BuyView(ThingView):
    def post(self, request: Any) -> Any:
        return Buy(**request.data)


class BuyOnceView(ThingView):
    def post(self, request: Any) -> Any:
        return BuyOnce()


class BuySmallView(BuyView):
    idempotency_max_response_bytes = 4


class AccountView(ThingView):
    """The account is what the caller says it is: two credentials may name the same one."""

    idempotency_methods = ("POST", "PATCH", "PUT")

    def get_idempotency_tenant(self) -> str:
        return str(self.request.headers["Account"])


class AccountKeysView(IdempotencyKeyView):
    permission_classes = (AllowAny,)
    authentication_classes = ()

    def get_idempotency_tenant(self) -> str:
        return str(self.request.headers["Account"])


class ThingViewSet(IdempotencyMixin, viewsets.ViewSet):
    permission_classes = (AllowAny,)
    idempotency_methods = ("POST", "PUT", "PATCH", "DELETE")

    def list(self, request: Any) -> Response:
        return Response([])

    def create(self, request: Any) -> Any:
        return work(request)

    def update(self, request: Any, pk: str) -> Any:
        return work(request)

    def destroy(self, request: Any, pk: str) -> Any:
        work(request)
        return Response(status=204)

    @action(detail=True, methods=["post"])
    def refund(self, request: Any, pk: str) -> Any:
        return work(request)


class SomeActionsViewSet(ThingViewSet):
    """Only the refund takes a key."""

    idempotency_actions = frozenset({"refund"})


def as_plain(response: Any) -> HttpResponse:
    """What a plain Django view would return for the same."""
    if not isinstance(response, Response):
        return response  # type: ignore[no-any-return]
    headers = {name: value for name, value in response.items() if name != "Content-Type"}
    return JsonResponse(response.data, safe=False, status=response.status_code, headers=headers)


@csrf_exempt
@idempotent(required=True)
def plain(request: Any) -> HttpResponse:
    return as_plain(work(request))


@csrf_exempt
@idempotent
def plain_optional(request: Any) -> HttpResponse:
    return as_plain(work(request))


@csrf_exempt
@idempotent(required=True, body_field="client_token")
def plain_body_field(request: Any) -> HttpResponse:
    return as_plain(work(request))


@csrf_exempt
@idempotent
def plain_buy(request: Any) -> Buy:
    return Buy()
