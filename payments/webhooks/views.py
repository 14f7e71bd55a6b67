"""The API's side of webhooks."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from payments import openapi
from payments import serializers as shapes
from payments.api import PaymentsView, validated
from payments.openapi import ALWAYS, BODY, problem_responses
from payments.webhooks import endpoints
from payments.webhooks.addresses import RefusedUrl


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
            **problem_responses(*ALWAYS, *BODY),
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
