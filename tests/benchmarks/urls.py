"""Each view twice: bare, and protected."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction
from django.urls import include, path
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from idempotency.rest_framework import IdempotencyMixin
from payments.api import PaymentsView
from payments.views import TransfersView


class BareView(APIView):
    authentication_classes = ()
    permission_classes = (AllowAny,)

    def post(self, request: Request) -> Response:
        group = Group.objects.create(name=f"{request.data['description']} {uuid.uuid4()}")
        return Response({"id": group.pk}, status=201)


class ProtectedView(IdempotencyMixin, BareView):
    idempotency_required = True
    idempotency_body_field = "client_token"


class BareTransfersView(PaymentsView):
    """The product's transfer without its key."""

    def post(self, request: Request) -> Any:
        with transaction.atomic():
            return TransfersView.post(self, request)  # type: ignore[arg-type]


urlpatterns = [
    path("bare", BareView.as_view()),
    path("protected", ProtectedView.as_view()),
    path("bare-transfers", BareTransfersView.as_view()),
    path("", include("payments.urls")),
    path("problems/", include("idempotency.http.urls")),
]
