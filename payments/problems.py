"""The problems (RFC 9457) this product answers with. What leads to each is in `exception_handler`.

Every `type` is the URL of a page that the service itself serves. The problems of the idempotency
layer have pages of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem: `code` and `title` never change once released."""

    code: str
    status: int
    title: str
    #: For the page: what happened, and what a client should do.
    meaning: str


_TYPES = (
    ProblemType(
        "malformed_request",
        400,
        "The body cannot be read",
        "The body is not valid JSON, form data or multipart, or it holds what cannot be stored: "
        "a name twice, NaN, a NUL character, half a surrogate pair, or nesting deeper than 64 "
        "levels. Nothing was done. Send it again corrected; the same key may be used.",
    ),
    ProblemType(
        "invalid_request",
        400,
        "The request is not valid",
        "A field is missing, unknown, of the wrong type or out of range; `errors` says which and "
        "why. Nothing was done. Send it again corrected; the same key may be used.",
    ),
    ProblemType(
        "not_authenticated",
        401,
        "An API key is needed",
        "Send `Authorization: Bearer sk_…` with a key that has not been revoked.",
    ),
    ProblemType(
        "not_signed",
        401,
        "The event is not signed",
        "The signature is not of a secret known here, or is older than five minutes, or the body "
        "is not the one that was signed. Nothing was recorded. Sign the bytes as they are sent, "
        "anew each time they are sent.",
    ),
    ProblemType(
        "card_declined",
        402,
        "The charge was declined",
        "The gateway refused; no money moved. `decline_code` is the gateway's reason and `charge` "
        "names the declined charge. The answer is kept: the same key gets it again. To try once "
        "more, perhaps with another source, use a new key.",
    ),
    ProblemType(
        "permission_denied", 403, "Not allowed", "The API key may not do this. Nothing was done."
    ),
    ProblemType(
        "not_found",
        404,
        "There is no such resource",
        "Nothing is at this address, or it belongs to another account. Nothing was done.",
    ),
    ProblemType(
        "account_not_found",
        404,
        "There is no such account",
        "The account in `to` does not exist. Nothing was moved; the same key may be used again.",
    ),
    ProblemType(
        "method_not_allowed",
        405,
        "The method is not supported here",
        "The `Allow` header lists the methods that are.",
    ),
    ProblemType(
        "not_acceptable",
        406,
        "No acceptable representation",
        "Answers are `application/json`; the `Accept` header refused that. Nothing was done.",
    ),
    ProblemType(
        "precondition_failed",
        412,
        "The resource has changed",
        "`If-Match` names another version than the present one. Nothing was changed. Read the "
        "resource again, and repeat the change with its new `ETag`.",
    ),
    ProblemType(
        "request_too_large",
        413,
        "The body is too large",
        "The body is larger than this service reads. Nothing was done.",
    ),
    ProblemType(
        "unsupported_media_type",
        415,
        "The media type is not supported",
        "Send `application/json`, `application/x-www-form-urlencoded` or `multipart/form-data`.",
    ),
    ProblemType(
        "insufficient_funds",
        422,
        "The balance is too small",
        "The account holds less than the amount in this currency. Nothing was moved. The answer "
        "is kept: the same key gets it again. When there is money, use a new key.",
    ),
    ProblemType(
        "same_account",
        422,
        "A transfer needs two accounts",
        "The account in `to` is the sender's own. Nothing was moved.",
    ),
    ProblemType(
        "charge_not_refundable",
        422,
        "The charge cannot be refunded",
        "Only a charge that succeeded can be refunded. Nothing was moved.",
    ),
    ProblemType(
        "refund_exceeds_charge",
        422,
        "The refund is larger than what is left",
        "The refunds of a charge, those on their way included, never exceed its amount. "
        "`refundable` is what is left. Nothing was moved.",
    ),
    ProblemType(
        "refund_refused",
        422,
        "The gateway refused the refund",
        "The amount went back to the balance. `refund` names the failed refund and `failure_code` "
        "is the gateway's reason. To try once more, use a new key.",
    ),
    ProblemType(
        "too_many_endpoints",
        422,
        "There are as many endpoints as there may be",
        "An account has sixteen webhook endpoints at most, those that are switched off included. "
        "Nothing was done. Write one of those there are under its id.",
    ),
    ProblemType(
        "precondition_required",
        428,
        "If-Match is needed",
        "Send `If-Match` with the `ETag` of the version you have seen, so that nobody's change "
        "is overwritten unseen. Nothing was changed.",
    ),
    ProblemType(
        "too_many_requests",
        429,
        "Too many requests",
        "Wait for `Retry-After` seconds. Nothing was done; the same key may be used.",
    ),
    ProblemType(
        "service_unavailable",
        503,
        "The service cannot reach its database",
        "Repeat the request after `Retry-After` seconds, with the same key if it had one.",
    ),
    ProblemType(
        "not_ready",
        503,
        "Not ready for traffic",
        "Something this process needs is missing; `checks` says what. Other processes may serve.",
    ),
)

TYPES: dict[str, ProblemType] = {problem.code: problem for problem in _TYPES}


def base_of(request: Request) -> str:
    """Scheme and host of a request: what makes the path of a problem's page its URL."""
    return f"{request.scheme}://{request.get_host()}"


def body(code: str, detail: str = "", *, base: str, **members: Any) -> dict[str, Any]:
    """The members of a problem; `members` are extensions that its page names."""
    problem = TYPES[code]
    return {
        "type": base + reverse("payments:problem", args=[code]),
        "title": problem.title,
        "status": problem.status,
        "detail": detail or problem.meaning,
        "code": code,
        **members,
    }


def response(document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The answer with a problem as its body."""
    return Response(
        dict(document),
        status=document["status"],
        headers=dict(headers or {}),
        content_type=CONTENT_TYPE,
    )
