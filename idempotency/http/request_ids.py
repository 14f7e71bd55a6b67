"""Middleware that gives every request an id, and tells the logs what to hide of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from idempotency import propagation, redaction
from idempotency.http.requests import HEADER_IN_META

_REQUEST_ID_IN_META = f"HTTP_{propagation.HEADER.upper().replace('-', '_')}"

GetResponse = Callable[[HttpRequest], HttpResponseBase]


def request_id_middleware(get_response: GetResponse) -> GetResponse:
    """Accept ``X-Request-ID`` or make one, put the same into the answer, and name it in this
    library's logs. Put it first, before whatever else logs.

    An id that is not acceptable (``propagation.accept``) is replaced, in ``request.META`` as well,
    so that middleware behind this one can trust what it finds there.

    The key and the credentials that the request brings are hidden from the lines that it logs,
    where the pipeline ends in a ``redactor()``.
    """

    def serve(request: HttpRequest) -> HttpResponseBase:
        secrets = _secrets(request)
        request_id = propagation.accept(request.META.get(_REQUEST_ID_IN_META))
        if any(secret in request_id for secret in secrets):
            # Some clients have one UUID for everything.
            request_id = propagation.accept(None)
        request.META[_REQUEST_ID_IN_META] = request_id
        propagation.begin(request_id)
        redaction.begin()
        redaction.hide(*secrets)
        response = get_response(request)
        response.headers[propagation.HEADER] = request_id
        return response

    return serve


@receiver(request_finished)
def _forget(**_: Any) -> None:
    # Not when the middleware returns: Django logs a 4xx, with its path, after that, and an answer
    # that is streamed is not made yet.
    propagation.begin("")
    redaction.end()


def _secrets(request: HttpRequest) -> list[str]:
    """The key, quoted or not, and the credentials; what is too short to be hidden is left out."""
    _scheme, _, credentials = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    key = request.META.get(HEADER_IN_META, "").strip().strip('"')
    return [secret for secret in (credentials.strip(), key) if len(secret) >= redaction.SHORTEST]
