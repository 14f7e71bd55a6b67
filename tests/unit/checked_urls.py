"""Routes for the checks: protected, misconfigured and unprotected ones of every kind."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_safe
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from idempotency.http.decorators import idempotent
from idempotency.rest_framework import IdempotencyMixin


class Protected(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response:
        return Response()


class Careless(Protected):
    idempotency_fingerprint_exclude = ("note", "chargeAmount", "to", "valid_to")


class LongLived(Protected):
    idempotency_ttl = 40 * 24 * 3600
    idempotency_lease = 0


class Misspelt(Protected):
    idempotency_requried = True


class PartlyProtected(Protected):
    """POST takes a key, PUT does not."""

    def put(self, request: Any) -> Response:
        return Response()


class Unprotected(APIView):
    def get(self, request: Any) -> Response:
        return Response()

    def post(self, request: Any) -> Response:
        return Response()

    def delete(self, request: Any) -> Response:
        return Response()


class Things(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()

    def create(self, request: Any) -> Response:
        return Response()


class Plain(View):
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


@idempotent
def protected_function(request: Any) -> HttpResponse:
    return HttpResponse()


@csrf_exempt
@require_http_methods(["GET", "POST"])
def posting_function(request: Any) -> HttpResponse:
    return HttpResponse()


@require_safe
def safe_function(request: Any) -> HttpResponse:
    return HttpResponse()


def function(request: Any) -> HttpResponse:
    return HttpResponse()


router = SimpleRouter()
router.register("things", Things, basename="thing")

urlpatterns = [
    path("protected", Protected.as_view()),
    path("protected-function", protected_function),
    path("careless", Careless.as_view()),
    path("long-lived", LongLived.as_view()),
    path("misspelt", Misspelt.as_view()),
    path("partly/<int:number>", PartlyProtected.as_view()),
    path("unprotected", Unprotected.as_view()),
    path("plain", Plain.as_view()),
    path("posting", posting_function),
    path("safe", safe_function),
    path("function", function),
    path("api/", include(router.urls)),
    path("admin/", admin.site.urls),
]
