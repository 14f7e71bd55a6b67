"""What each exception means in HTTP: the one place that knows both."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from django.core import exceptions as django_errors
from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as api_errors
from rest_framework.response import Response
from rest_framework.views import set_rollback

from payments import exceptions, problems

#: Seconds to wait for a database that does not answer.
RETRY_AFTER = 2

#: Exception -> problem code; a subclass counts as its nearest base.
_CODES: dict[type[Exception], str] = {
    exceptions.NotFound: "not_found",
    exceptions.AccountNotFound: "account_not_found",
    exceptions.SameAccount: "same_account",
    exceptions.InsufficientFunds: "insufficient_funds",
    exceptions.ChargeNotRefundable: "charge_not_refundable",
    exceptions.RefundExceedsCharge: "refund_exceeds_charge",
    exceptions.TooManyEndpoints: "too_many_endpoints",
    exceptions.NotSigned: "not_signed",
    exceptions.PreconditionRequired: "precondition_required",
    exceptions.PreconditionFailed: "precondition_failed",
    api_errors.ParseError: "malformed_request",
    api_errors.ValidationError: "invalid_request",
    api_errors.NotAuthenticated: "not_authenticated",
    api_errors.AuthenticationFailed: "not_authenticated",
    api_errors.PermissionDenied: "permission_denied",
    api_errors.NotFound: "not_found",
    api_errors.MethodNotAllowed: "method_not_allowed",
    api_errors.NotAcceptable: "not_acceptable",
    api_errors.UnsupportedMediaType: "unsupported_media_type",
    api_errors.Throttled: "too_many_requests",
    Http404: "not_found",
    django_errors.PermissionDenied: "permission_denied",
    django_errors.RequestDataTooBig: "request_too_large",
    # Too many form fields or files, and the like.
    django_errors.SuspiciousOperation: "malformed_request",
    UnreadablePostError: "malformed_request",
    # No connection, a deadlock, a lock or statement that timed out: the caller may try again.
    OperationalError: "service_unavailable",
    InterfaceError: "service_unavailable",
}


class Refusal(api_errors.APIException):
    """A domain error on its way out of a handler, in the clothes of a client error."""

    def __init__(self, error: exceptions.PaymentError, code: str) -> None:
        super().__init__(str(error), code)
        self.status_code = problems.TYPES[code].status
        self.error = error


@contextmanager
def refusals(of: type[exceptions.PaymentError] = exceptions.PaymentError) -> Iterator[None]:
    """Let a domain error roll the handler back and release its key, as a client error does.

    For what is no answer worth keeping: something absent, a stale version.
    """
    try:
        yield
    except of as error:
        if code := _code_of(error):
            raise Refusal(error, code) from error
        raise


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """What REST framework asks for every exception of a view; None lets it become a 500."""
    if isinstance(error, Refusal):
        error = error.error
    if code := _code_of(error):
        base = problems.base_of(context["request"])
        body = problems.body(code, _detail(error), base=base, **_members(error))
    elif isinstance(error, api_errors.APIException):
        body = _unlisted(error)
    else:
        return None
    set_rollback()
    return problems.response(body, _headers(error))


def problem_of(error: exceptions.PaymentError, *, base: str) -> dict[str, Any]:
    """The body for a refusal that is an answer, and is returned rather than raised."""
    code = _code_of(error)
    if code is None:
        raise error
    return problems.body(code, str(error), base=base, **_members(error))


def _code_of(error: Exception) -> str | None:
    if getattr(error, "status_code", None) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "request_too_large"
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)


def _detail(error: Exception) -> str:
    if isinstance(error, exceptions.PaymentError):
        return str(error)
    if isinstance(error, api_errors.APIException) and isinstance(error.detail, str):
        return error.detail
    return ""


def _members(error: Exception) -> dict[str, Any]:
    if isinstance(error, exceptions.RefundExceedsCharge):
        return {"refundable": error.refundable}
    if isinstance(error, api_errors.ValidationError):
        return {"errors": _messages(error.detail)}
    return {}


def _headers(error: Exception) -> dict[str, str]:
    if isinstance(error, OperationalError | InterfaceError):
        return {"Retry-After": str(RETRY_AFTER)}
    if isinstance(error, exceptions.NotSigned):
        # RFC 9110 section 15.5.2: a 401 names a scheme.
        return {"WWW-Authenticate": 'StandardWebhooks realm="gateway-events"'}
    if header := getattr(error, "auth_header", None):
        return {"WWW-Authenticate": header}
    if (wait := getattr(error, "wait", None)) is not None:
        return {"Retry-After": str(max(1, math.ceil(wait)))}
    return {}


def _messages(detail: Any) -> dict[str, list[str]]:
    """Field -> messages; what is wrong with the body as a whole is under `body`."""
    if not isinstance(detail, dict):
        return {"body": [str(message) for message in detail]}
    return {
        "body" if field == "non_field_errors" else str(field): [str(it) for it in messages]
        for field, messages in detail.items()
    }


def _unlisted(error: api_errors.APIException) -> dict[str, Any]:
    """An exception of another app: a problem without a page of ours."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(error.status_code).phrase,
        "status": error.status_code,
        "detail": str(error.detail),
        "code": error.default_code,
    }
