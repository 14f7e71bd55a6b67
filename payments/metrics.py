"""`/metrics`, for whoever holds the token.

Without `METRICS_TOKEN` there is nothing at this address, so that a deployment that forgot about it
tells nobody how much money moves. The demo, whose hosts are loopback only, shows them to this
machine.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from idempotency.observability.exposition import exposition


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics, in the format that the scraper asks for."""
    token: Any = settings.METRICS_TOKEN
    if token:
        if not constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return _unauthorized()
    elif not (settings.DEMO and _is_this_machine(request.META.get("REMOTE_ADDR", ""))):
        raise Http404
    body, content_type = exposition(accept=request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)


def _unauthorized() -> HttpResponse:
    answer = HttpResponse("Send METRICS_TOKEN as a bearer token.\n", "text/plain", status=401)
    answer["WWW-Authenticate"] = 'Bearer realm="metrics"'
    return answer


def _is_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a Unix socket has no address
        return False
