"""Webhook endpoints. The merchant names each one, so writing it twice is writing it once."""

from payments.exceptions import WebhookEndpointNotFound
from payments.models import Merchant, WebhookEndpoint


def put(*, merchant: Merchant, endpoint_id: str, url: str) -> tuple[WebhookEndpoint, bool]:
    """The endpoint, and whether it is new."""
    return WebhookEndpoint.objects.update_or_create(
        merchant=merchant, endpoint_id=endpoint_id, defaults={"url": url}
    )


def get(*, merchant: Merchant, endpoint_id: str) -> WebhookEndpoint:
    """Raises `WebhookEndpointNotFound`, also when it is somebody else's."""
    try:
        return WebhookEndpoint.objects.get(merchant=merchant, endpoint_id=endpoint_id)
    except WebhookEndpoint.DoesNotExist:
        raise WebhookEndpointNotFound("There is no such webhook endpoint.") from None
