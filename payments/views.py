"""The API. Each view parses, calls one service, and shows what came of it."""

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from idempotency.client import BulkheadFull
from idempotency.rest_framework import IdempotencyMixin, RetryBudgetThrottle
from idempotency.rest_framework.views import IdempotencyKeyView
from payments import (
    charges,
    exceptions,
    ledger,
    openapi,
    pagination,
    preconditions,
    problems,
    refunds,
    transfers,
)
from payments import serializers as shapes
from payments.api import MerchantScope, PaymentsView, key_id_of, validated
from payments.exception_handler import problem_of, refusals
from payments.gateways.choice import get_gateway
from payments.openapi import ALWAYS, BODY, problem_responses
from payments.operations import CreateCharge, CreateRefund
from payments.preconditions import etag


class KeyedView(MerchantScope, IdempotencyMixin, PaymentsView):  # type: ignore[misc]
    """A view whose POST moves money: it needs a key, in the header or the body."""

    idempotency_required = True
    idempotency_body_field = "client_token"
    throttle_classes = [RetryBudgetThrottle]


class GatewayView(KeyedView):
    """A view whose POST needs the gateway."""

    # A double click gets the answer of the first one, if that comes soon.
    idempotency_busy = "wait"
    idempotency_wait = 2.0

    def get_idempotency_obstacle(self) -> BulkheadFull | None:
        # While the gateway stalls, the threads that are left are for those who do not need it.
        return get_gateway().obstacle()


class ChargesView(GatewayView):
    @extend_schema(
        operation_id="create_charge",
        summary="Charge a source",
        description="The gateway is asked once for a key, whatever is lost on the way.",
        request=openapi.body_of(shapes.ChargeRequest, shapes.ChargeForm),
        parameters=[openapi.LOCATION, openapi.etag_header(201)],
        responses={
            201: shapes.ChargeRepresentation,
            **problem_responses(*ALWAYS, *BODY, "card_declined"),
        },
        examples=[
            OpenApiExample(
                "A card that works",
                {"amount": 1250, "currency": "EUR", "source": "tok_visa"},
                request_only=True,
            ),
        ],
    )
    def post(self, request: Request) -> CreateCharge:
        return CreateCharge(**validated(shapes.ChargeRequest, request))

    @extend_schema(
        operation_id="list_charges",
        summary="List charges, newest first",
        parameters=[openapi.LIMIT, openapi.CURSOR],
        responses={200: shapes.ChargePage, **problem_responses(*ALWAYS, "invalid_request")},
    )
    def get(self, request: Request) -> Response:
        page = pagination.paginate(charges.of_merchant(merchant=self.merchant), request)
        return Response(shapes.ChargePage(page).data)


class ChargeView(MerchantScope, IdempotencyMixin, PaymentsView):  # type: ignore[misc]
    @extend_schema(
        operation_id="get_charge",
        summary="Show a charge",
        parameters=[openapi.IF_NONE_MATCH, openapi.etag_header(200, 304)],
        responses={
            200: shapes.ChargeRepresentation,
            304: OpenApiResponse(description="The version named in `If-None-Match` is current."),
            **problem_responses(*ALWAYS, "not_found"),
        },
    )
    def get(self, request: Request, charge_id: str) -> Response:
        charge = charges.get(merchant=self.merchant, public_id=charge_id)
        headers = {"ETag": etag(charge)}
        if preconditions.not_modified(request, headers["ETag"]):
            return Response(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
        return Response(shapes.ChargeRepresentation(charge).data, headers=headers)

    @extend_schema(
        operation_id="change_charge",
        summary="Change a charge's description or metadata",
        description="`metadata` is replaced whole; what the body does not name stays.",
        request=openapi.body_of(shapes.ChargeChange, shapes.ChargeChangeForm),
        parameters=[openapi.IF_MATCH, openapi.etag_header(200)],
        responses={
            200: shapes.ChargeRepresentation,
            **problem_responses(
                *ALWAYS, *BODY, "not_found", "precondition_failed", "precondition_required"
            ),
        },
    )
    def patch(self, request: Request, charge_id: str) -> Response:
        # Inside the handler, so that a replay comes first and never turns into a 412.
        with refusals():
            condition = preconditions.if_match(request)
            changes = validated(shapes.ChargeChange, request)
            charge = charges.lock(merchant=self.merchant, public_id=charge_id)
            preconditions.check(condition, etag(charge))
        charge = charges.edit(charge=charge, changes=changes)
        return Response(shapes.ChargeRepresentation(charge).data, headers={"ETag": etag(charge)})


class RefundsView(GatewayView):
    @extend_schema(
        operation_id="create_refund",
        summary="Refund a charge, in part or whole",
        description="The amount leaves the balance at once and comes back if the gateway refuses.",
        request=openapi.body_of(shapes.RefundRequest),
        parameters=[openapi.LOCATION],
        responses={
            201: shapes.RefundRepresentation,
            **problem_responses(
                *ALWAYS,
                *BODY,
                "not_found",
                "charge_not_refundable",
                "refund_exceeds_charge",
                "insufficient_funds",
                "refund_refused",
            ),
        },
    )
    def post(self, request: Request, charge_id: str) -> CreateRefund:
        return CreateRefund(charge=charge_id, **validated(shapes.RefundRequest, request))

    @extend_schema(
        operation_id="list_refunds",
        summary="List a charge's refunds, newest first",
        parameters=[openapi.LIMIT, openapi.CURSOR],
        responses={
            200: shapes.RefundPage,
            **problem_responses(*ALWAYS, "invalid_request", "not_found"),
        },
    )
    def get(self, request: Request, charge_id: str) -> Response:
        charge = charges.get(merchant=self.merchant, public_id=charge_id)
        page = pagination.paginate(refunds.of_charge(charge=charge), request)
        return Response(shapes.RefundPage(page).data)


class RefundView(PaymentsView):
    @extend_schema(
        operation_id="get_refund",
        summary="Show a refund",
        responses={
            200: shapes.RefundRepresentation,
            **problem_responses(*ALWAYS, "not_found"),
        },
    )
    def get(self, request: Request, refund_id: str) -> Response:
        refund = refunds.get(merchant=self.merchant, public_id=refund_id)
        return Response(shapes.RefundRepresentation(refund).data)


class TransfersView(KeyedView):
    # Transfers are short, so a duplicate hears 409 at once and asks again.
    idempotency_busy = "reject"

    @extend_schema(
        operation_id="create_transfer",
        summary="Move money to another account",
        description="At once and whole, or not at all; the balance never becomes negative.",
        request=openapi.body_of(shapes.TransferRequest),
        parameters=[openapi.LOCATION],
        responses={
            201: shapes.TransferRepresentation,
            **problem_responses(
                *ALWAYS, *BODY, "account_not_found", "same_account", "insufficient_funds"
            ),
        },
    )
    def post(self, request: Request) -> Response:
        data = validated(shapes.TransferRequest, request)
        try:
            with refusals(of=exceptions.AccountNotFound):
                transfer = transfers.create(sender=self.merchant, key_id=key_id_of(request), **data)
        except (exceptions.InsufficientFunds, exceptions.SameAccount) as refusal:
            # Returned, not raised: an answer, kept with the key.
            return problems.response(problem_of(refusal, base=problems.base_of(request)))
        return Response(
            shapes.TransferRepresentation(transfer).data,
            status=status.HTTP_201_CREATED,
            headers={"Location": transfer.get_absolute_url()},
        )


class TransferView(PaymentsView):
    @extend_schema(
        operation_id="get_transfer",
        summary="Show a transfer sent or received",
        responses={
            200: shapes.TransferRepresentation,
            **problem_responses(*ALWAYS, "not_found"),
        },
    )
    def get(self, request: Request, transfer_id: str) -> Response:
        transfer = transfers.get(merchant=self.merchant, public_id=transfer_id)
        return Response(shapes.TransferRepresentation(transfer).data)


class BalanceView(PaymentsView):
    @extend_schema(
        operation_id="get_balance",
        summary="Show the balance in each currency",
        responses={200: shapes.Balance, **problem_responses(*ALWAYS)},
    )
    def get(self, request: Request) -> Response:
        balances = ledger.balances(merchant=self.merchant)
        lines = [{"currency": currency, "amount": amount} for currency, amount in balances]
        return Response({"data": lines})


class KeyView(MerchantScope, PaymentsView, IdempotencyKeyView):  # type: ignore[misc]
    @extend_schema(
        operation_id="get_idempotency_key",
        summary="Show what became of a key",
        description="The account's own keys only; a key that was never used is an empty list.",
        parameters=[openapi.KEY, openapi.ROUTE],
        responses={200: shapes.Keys, **problem_responses(*ALWAYS)},
    )
    def get(self, request: Request, key: str) -> Response:
        return super().get(request, key)


class NotFoundView(PaymentsView):
    """Whatever is under /v1/ and has no route: a problem as well, with any method."""

    schema = None
    authentication_classes = []
    permission_classes = []

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        raise NotFound("There is nothing at this address.")
