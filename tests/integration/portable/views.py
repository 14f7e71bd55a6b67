"""Views the portable suites protect. Their effect is a row in a table every project has: auth's Group."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group
from django.http import HttpResponse, JsonResponse
from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.views import APIView

from idempotency.http.decorators import idempotent
from idempotency.rest_framework import IdempotencyMixin

#: What the next call of a view does instead of its usual answer; a test sets it.
behaviour: Callable[[Any], Any] | None = None
#: Calls of a handler, whether or not their work was committed.
calls: list[Any] = []
_lock = threading.Lock()


def effects() -> int:
    """Rows that were committed."""
    return Group.objects.count()


def work(request: Any) -> Any:
    """One INSERT, then what the test asked for."""
    with _lock:
        calls.append(request)
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


class RequiredView(ThingView):
    idempotency_required = True


class UnprotectedView(APIView):
    permission_classes = (AllowAny,)

    def post(self, request: Any) -> Any:
        return work(request)


@idempotent(required=True)
def plain(request: Any) -> HttpResponse:
    response = work(request)
    if isinstance(response, Response):
        return JsonResponse(response.data, status=response.status_code)
    return response
