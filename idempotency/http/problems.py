"""The domain's errors as answers: problem documents of RFC 9457. The only place that gives them a
status."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, get_script_prefix, get_urlconf, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from idempotency.conf import settings
from idempotency.core import errors

CONTENT_TYPE = "application/problem+json"

#: Error → status and title. The title is the same each time, as RFC 9457 asks.
PROBLEMS: dict[type[errors.IdempotencyError], tuple[int, str | Promise]] = {
    errors.KeyMissing: (400, _("Idempotency key missing")),
    errors.KeyInvalid: (400, _("Idempotency key invalid")),
    errors.BodyRefused: (400, _("Body cannot be compared")),
    errors.BodyIncomplete: (400, _("Body incomplete")),
    errors.LengthRequired: (411, _("Length required")),
    errors.KeyReused: (422, _("Idempotency key reused for another request")),
    errors.KeyInUse: (409, _("Idempotency key in use")),
    errors.LeaseLost: (409, _("Lease lost")),
    errors.OutcomePending: (503, _("Outcome pending")),
    errors.OutcomeInDoubt: (409, _("Outcome in doubt")),
    errors.CallNotSent: (503, _("Downstream service unavailable")),
    errors.ResponseNotStored: (409, _("Response not stored")),
    errors.BudgetExhausted: (503, _("Retry budget exhausted")),
    errors.DeadlinePassed: (504, _("Deadline exceeded")),
    errors.ForceFailed: (410, _("Ended by an operator")),
    errors.StoreUnavailable: (503, _("Idempotency unavailable")),
}

#: These are the caller's to fix, so the answer links to what to do.
_LINKED = (errors.KeyMissing, errors.KeyInvalid, errors.BodyRefused, errors.KeyReused)


def problem_response(error: errors.IdempotencyError, request: HttpRequest | None) -> HttpResponse:
    """The answer to a request that was turned away."""
    document = problem_document(error, request)
    url = document["type"]
    response = HttpResponse(status=document["status"], content_type=CONTENT_TYPE)
    if isinstance(error, errors.ResponseNotStored) and error.resource:
        document["resource"] = error.resource
    if document["status"] in (409, 503) and error.retry == "same_key":
        seconds = settings().retry_after if error.retry_after is None else error.retry_after
        # An integer of at least one second, RFC 9110 section 10.2.3.
        response["Retry-After"] = str(max(1, math.ceil(seconds)))
    if isinstance(error, _LINKED) and url != "about:blank":
        response["Link"] = f'<{url}>; rel="describedby"'
    response["Cache-Control"] = "no-store"
    response.content = json.dumps(document).encode()
    return response


def problem_document(error: errors.IdempotencyError, request: HttpRequest | None) -> dict[str, Any]:
    """The members that every problem of this package has."""
    status, title = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    return {
        "type": problem_type(error.code, request),
        "title": str(title),
        "status": status,
        "detail": str(error),
        "code": error.code,
        "retry": error.retry,
    }


def problem_type(code: str, request: HttpRequest | None) -> str:
    """The URL of the page about a problem: PROBLEM_TYPE_BASE, else ours when
    ``idempotency.http.urls`` is routed.

    Without either, ``about:blank``, which RFC 9457 gives the meaning "nothing more to say than the
    status".
    """
    base = settings().problem_type_base
    if base:
        return f"{base.rstrip('/')}/{code}/"
    path = _page(code, get_urlconf() or django_settings.ROOT_URLCONF, get_script_prefix())
    if path is None:
        return "about:blank"
    return path if request is None else request.build_absolute_uri(path)


@cache
def _page(code: str, urlconf: str, prefix: str) -> str | None:
    """The path of a problem's page under this URLconf and script prefix, which ``reverse`` reads.

    A busy key answers with a problem each time, and reversing was a tenth of that answer.
    """
    try:
        return reverse("idempotency:problem", urlconf, args=[code])
    except NoReverseMatch:
        return None
