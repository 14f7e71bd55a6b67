"""The API's side of webhooks."""

from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from idempotency.http.problems import problem_response
from idempotency.inbox import IdempotencyError
from payments import openapi, problems
from payments import serializers as shapes
from payments.api import PaymentsView, RequestTooLarge, content_length, validated
from payments.exceptions import RefusedUrl
from payments.openapi import ALWAYS, BODY, problem_responses
from payments.webhooks import endpoints, gateway_events


class WebhookEndpointView(PaymentsView):
    """PUT is idempotent by itself, and the client chooses the id: no key is needed."""

    @extend_schema(
        operation_id="put_webhook_endpoint",
        summary="Create or replace a webhook endpoint",
        description=(
            "Idempotent by its method, so it takes no key: the client names the endpoint. Each "
            "answer has the `secret` that messages to it are signed with, so a lost answer loses "
            "nothing; GET does not show it."
        ),
        request=openapi.body_of(shapes.WebhookEndpointRequest),
        parameters=[openapi.ENDPOINT_ID, openapi.LOCATION],
        responses={
            200: shapes.WebhookEndpointWithSecret,
            201: shapes.WebhookEndpointWithSecret,
            **problem_responses(*ALWAYS, *BODY, "too_many_endpoints"),
        },
    )
    def put(self, request: Request, endpoint_id: str) -> Response:
        shapes.check_endpoint_id(endpoint_id)
        data = validated(shapes.WebhookEndpointRequest, request)
        try:
            endpoint, created = endpoints.put(
                merchant=self.merchant, endpoint_id=endpoint_id, **data
            )
        except RefusedUrl as refusal:
            raise ValidationError({"url": [str(refusal)]}) from refusal
        shown = shapes.WebhookEndpointWithSecret(endpoint).data
        if not created:
            return Response(shown)
        headers = {"Location": endpoint.get_absolute_url()}
        return Response(shown, status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(
        operation_id="get_webhook_endpoint",
        summary="Show a webhook endpoint",
        parameters=[openapi.ENDPOINT_ID],
        responses={
            200: shapes.WebhookEndpointRepresentation,
            **problem_responses(*ALWAYS, "not_found", "invalid_request"),
        },
    )
    def get(self, request: Request, endpoint_id: str) -> Response:
        shapes.check_endpoint_id(endpoint_id)
        endpoint = endpoints.get(merchant=self.merchant, endpoint_id=endpoint_id)
        return Response(shapes.WebhookEndpointRepresentation(endpoint).data)


class GatewayEventsView(PaymentsView):
    """The gateway calls it, without an API key: whoever knows the secret is the gateway."""

    authentication_classes = []
    permission_classes = []
    # The signature is over the bytes, whatever they are said to be.
    parser_classes = []

    @extend_schema(
        operation_id="receive_gateway_event",
        summary="Take an event of the gateway",
        description=(
            "Signed by the Standard Webhooks scheme, at most five minutes ago. 204 means recorded, "
            "and an event that was recorded before is 204 again: its charge or refund is settled "
            "once, now or soon. After any other answer the same event may be sent again."
        ),
        auth=[],
        request={"application/json": shapes.GatewayEvent},
        parameters=openapi.SIGNED,
        responses={
            204: OpenApiResponse(description="Recorded."),
            **problem_responses(
                "malformed_request",
                "invalid_request",
                "not_signed",
                "not_acceptable",
                "request_too_large",
                "service_unavailable",
            ),
            (409, problems.CONTENT_TYPE): OpenApiResponse(
                openapi.Problem,
                description="`idempotency_key_in_use`: the same event is being recorded right now.",
            ),
            (422, problems.CONTENT_TYPE): OpenApiResponse(
                openapi.Problem,
                description="`idempotency_key_reused`: its id was another event's.",
            ),
        },
    )
    def post(self, request: Request) -> HttpResponseBase:
        if content_length(request) > gateway_events.MAX_EVENT:
            raise RequestTooLarge
        try:
            gateway_events.receive(body=request._request.body, headers=request.headers)
        except IdempotencyError as error:
            return problem_response(error, request._request)
        return Response(status=status.HTTP_204_NO_CONTENT)
