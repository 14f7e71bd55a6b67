"""Webhook endpoints. The merchant names each one, so writing it twice is writing it once."""

from django.db import transaction

from payments.exceptions import TooManyEndpoints, WebhookEndpointNotFound
from payments.models import Merchant, WebhookEndpoint
from payments.webhooks import addresses

#: Of one merchant. A transfer is told to each endpoint of its recipient in the sender's
#: transaction, so without a bound one merchant could make another's transfers slow.
MOST = 16


def put(
    *, merchant: Merchant, endpoint_id: str, url: str, enabled: bool = True
) -> tuple[WebhookEndpoint, bool]:
    """The endpoint, and whether it is new. Raises `RefusedUrl` or `TooManyEndpoints`.

    Its secret is made with it and stays: a merchant who wants another one puts another endpoint,
    and switches this one off once the receiver knows both.
    """
    # Before the transaction, as it asks the network.
    addresses.check(url)
    others = WebhookEndpoint.objects.filter(merchant=merchant).exclude(endpoint_id=endpoint_id)
    known = WebhookEndpoint.objects.filter(merchant=merchant, endpoint_id=endpoint_id)
    with transaction.atomic():
        # One at a time for a merchant, or two that count fifteen would both write.
        Merchant.objects.select_for_update(no_key=True).get(pk=merchant.pk)
        if others.count() >= MOST and not known.exists():
            raise TooManyEndpoints(f"There are {MOST} endpoints, and that is the most.")
        return WebhookEndpoint.objects.update_or_create(
            merchant=merchant, endpoint_id=endpoint_id, defaults={"url": url, "enabled": enabled}
        )


def get(*, merchant: Merchant, endpoint_id: str) -> WebhookEndpoint:
    """Raises `WebhookEndpointNotFound`, also when it is somebody else's."""
    try:
        return WebhookEndpoint.objects.get(merchant=merchant, endpoint_id=endpoint_id)
    except WebhookEndpoint.DoesNotExist:
        raise WebhookEndpointNotFound("There is no such webhook endpoint.") from None


def listening(*, merchant_ids: set[int]) -> list[WebhookEndpoint]:
    """The enabled endpoints of these merchants."""
    endpoints = WebhookEndpoint.objects.filter(merchant__in=merchant_ids, enabled=True)
    return list(endpoints.select_related("merchant").order_by("pk"))


def at(*, destination: str) -> WebhookEndpoint | None:
    """The endpoint that the outbox knows by this name."""
    account, _, endpoint_id = destination.partition("/")
    endpoints = WebhookEndpoint.objects.select_related("merchant")
    return endpoints.filter(merchant__public_id=account, endpoint_id=endpoint_id).first()


def disable(*, endpoint: WebhookEndpoint) -> None:
    """Send it nothing any more, unless its merchant has given it another URL meanwhile."""
    gone = WebhookEndpoint.objects.filter(pk=endpoint.pk, url=endpoint.url)
    gone.update(enabled=False)
