"""Each view twice: bare, and protected."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.urls import include, path
from rest_framework.generics import CreateAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView

from idempotency.rest_framework import IdempotencyMixin
from payments.api import PaymentsView
from payments.models import Merchant
from payments.views import TransfersView


class MerchantSerializer(ModelSerializer[Merchant]):
    class Meta:
        model = Merchant
        fields = ("public_id", "name", "created")


class BareView(CreateAPIView[Merchant]):
    """The plainest view that REST framework has for an INSERT."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    queryset = Merchant.objects.all()
    serializer_class = MerchantSerializer


class ProtectedView(IdempotencyMixin, BareView):
    idempotency_required = True
    idempotency_body_field = "client_token"


class WaitingView(ProtectedView):
    idempotency_busy = "wait"


class BareLeanView(APIView):
    """By hand: no serializer, so the INSERT is nearly all there is."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    def post(self, request: Request) -> Response:
        merchant = Merchant.objects.create(name=request.data["name"])
        return Response({"id": merchant.public_id}, status=201)


class ProtectedLeanView(IdempotencyMixin, BareLeanView):
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
    path("waiting", WaitingView.as_view()),
    path("bare-lean", BareLeanView.as_view()),
    path("protected-lean", ProtectedLeanView.as_view()),
    path("bare-transfers", BareTransfersView.as_view()),
    path("", include("payments.urls")),
    path("problems/", include("idempotency.http.urls")),
]
