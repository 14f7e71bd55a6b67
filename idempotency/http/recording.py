"""Between Django's responses and the ones that are kept."""

from __future__ import annotations

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from idempotency.core.responses import REPLAY_MARKER, WITHOUT_BODY, RecordedResponse, stored_headers


def record(response: HttpResponseBase) -> RecordedResponse:
    """The answer as it would be kept. A stream can be read only once, by its first reader: it is
    not kept.

    The response must be rendered. Cookies live apart from the headers in Django and stay out.
    """
    headers = stored_headers(response.items())
    if response.streaming:
        body = b"" if response.status_code in WITHOUT_BODY else None
        return RecordedResponse(response.status_code, headers, body)
    assert isinstance(response, HttpResponse)  # noqa: S101  what does not stream has content
    return RecordedResponse(response.status_code, headers, response.content)


def respond(recorded: RecordedResponse, *, replayed: bool) -> HttpResponse:
    """An answer made of kept bytes, marked when it is a replay. A first answer carries no marker at
    all."""
    response = HttpResponse(recorded.body or b"", status=recorded.status)
    # Django adds a Content-Type of its own where none was stored; a 204 had none.
    del response["Content-Type"]
    for name, value in recorded.headers:
        response[name] = value
    if replayed:
        response[REPLAY_MARKER] = "true"
    return response
