"""System checks of the product."""

from typing import Any

from django.core.checks import CheckMessage, Warning, register
from django.core.exceptions import ImproperlyConfigured

from payments.gateways.choice import get_gateway
from payments.views import ChargesView, RefundsView


@register("payments")
def check_leases(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """W001: a lease that can end while the gateway is still being called."""
    try:
        longest = get_gateway().longest_call
        leases = {it: it.get_idempotency_policy().lease for it in (ChargesView, RefundsView)}
    except ImproperlyConfigured:
        return []  # Told by whoever needs it.
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
