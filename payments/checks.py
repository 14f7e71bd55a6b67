"""System checks of the product."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured

from payments.gateways.choice import get_gateway
from payments.gateways.events import ReadsEvents
from payments.views import ChargesView, RefundsView
from payments.webhooks import conf, signatures


@register("payments")
def check_gateway(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """E002: a gateway that cannot be made. W002: one whose events nobody could check."""
    try:
        gateway = get_gateway()
    except (ImproperlyConfigured, ImportError) as error:
        hint = "Correct PAYMENTS_GATEWAY; no charge can be made before."
        return [Error(f"There is no gateway: {error}", hint=hint, id="payments.E002")]
    if isinstance(gateway, ReadsEvents) and not settings.PAYMENTS_GATEWAY.get("WEBHOOK_SECRET"):
        return [
            Warning(
                "The gateway's events are refused: there is no secret to check them with.",
                hint="Set WEBHOOK_SECRET in PAYMENTS_GATEWAY. Without events, charges whose answer "
                "was lost wait for the reconciliation.",
                id="payments.W002",
            )
        ]
    return []


@register("payments")
def check_leases(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """W001: a lease that can end while the gateway is still being called."""
    try:
        longest = get_gateway().longest_call
        leases = {it: it.get_idempotency_policy().lease for it in (ChargesView, RefundsView)}
    except (ImproperlyConfigured, ImportError):
        return []  # E002 tells.
    return [
        Warning(
            f"A key of {view.__name__} is leased for {lease.total_seconds():g} s, and a call of "
            f"the gateway may take {longest:g} s.",
            hint="A retry would take the key over while the first call still runs. Raise the "
            "lease, or lower TIMEOUT or ATTEMPTS in PAYMENTS_GATEWAY.",
            obj=view,
            id="payments.W001",
        )
        for view, lease in leases.items()
        if lease.total_seconds() <= longest
    ]


@register("payments")
def check_gateway_secrets(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """E001: a secret that no event can be signed with."""
    return [
        Error(
            f"GATEWAY_SECRETS of PAYMENTS_WEBHOOKS: number {number} is no secret.",
            hint="It is `whsec_` and at least 24 bytes in base64, as the gateway shows it.",
            id="payments.E001",
        )
        for number, secret in enumerate(conf.gateway_secrets(), start=1)
        if not signatures.is_secret(secret)
    ]
