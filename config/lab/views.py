"""The lab's page, and the gateway's ledger for it: the gateway is another origin to a browser."""

from functools import cache
from typing import Any

import httpx2
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from config.lab.steps import STEPS
from payments import merchants
from payments.management.commands.seed_demo import MERCHANTS

#: Nothing but our own files, and no script inside the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Entries in one answer; what is left comes with the next.
PAGE = 200
TIMEOUT = 2.0
_SHOWN = ("id", "kind", "amount", "currency", "reference", "created")


@require_safe
@never_cache
def lab(request: HttpRequest) -> HttpResponse:
    keys = [merchants.active_api_key(secret=secret) for secret in MERCHANTS.values()]
    if None in keys:
        context: dict[str, Any] = {"missing": True}
    else:
        sender, recipient = (key.merchant for key in keys if key)
        context = {
            "steps": STEPS,
            "faults": settings.DEMO_FAULTS,
            "sender": sender,
            "settings": _settings(sender.public_id, recipient.public_id),
        }
    response = render(request, "lab/lab.html", context, status=503 if None in keys else 200)
    response["Content-Security-Policy"] = POLICY
    return response


def _settings(account: str, recipient: str) -> dict[str, str]:
    """What the page's script has to know."""
    return {
        "apiKey": next(iter(MERCHANTS.values())),
        "account": account,
        "recipient": recipient,
        # The ledger is shown from here on.
        "began": timezone.now().isoformat(),
        "charges": reverse("payments:charges"),
        "transfers": reverse("payments:transfers"),
        "balance": reverse("payments:balance"),
        "keys": reverse("payments:idempotency-key", args=["KEY"]),
        "ledger": reverse("lab:ledger"),
        "admin": reverse("admin:idempotency_idempotencykey_changelist"),
    }


@require_safe
@never_cache
def ledger(request: HttpRequest) -> JsonResponse:
    """What moved at the gateway, by its own word: from `since` on, or behind the entry `after`.

    503 where the gateway does not say, so that silence is never taken for "nothing moved".
    """
    asked = {name: request.GET[name] for name in ("since", "after") if name in request.GET}
    try:
        answer = _gateway(settings.GATEWAY_URL).get("/ledger", params={**asked, "limit": PAGE})
        entries = answer.raise_for_status().json()
        shown = [{name: entry[name] for name in _SHOWN} for entry in entries]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return JsonResponse({"entries": None}, status=503)
    return JsonResponse({"entries": shown})


@cache
def _gateway(url: str) -> httpx2.Client:
    # Kept for what it costs to make one. Its connections are not: nobody would close them.
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(base_url=url, timeout=TIMEOUT, trust_env=False, limits=limits)
