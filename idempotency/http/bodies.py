"""Whether a request's body has come whole.

A server hands on what it has when a client dies in the middle of a body (RFC 9112 section 8 calls
that request incomplete), and the beginning of a form is mostly a form: ``amount=1000``, cut two
bytes short, would charge 10.
"""

from __future__ import annotations

from django.http import HttpRequest

__all__ = ["is_whole"]


def is_whole(request: HttpRequest) -> bool:
    """Whether as many bytes were read as ``Content-Length`` announced. Ask once it was parsed.

    Django keeps the bytes where somebody asked for them. Else its stream knows how far a parser
    came: to the end, if there was one, because each parser reads on until there is no more.
    """
    body = getattr(request, "_body", None)
    if body is not None:
        return len(body) >= _announced(request)
    stream = getattr(request, "_stream", None)
    read, limit = getattr(stream, "_pos", None), getattr(stream, "limit", None)
    # Under ASGI there is another stream, and a client that leaves ends the request before the view.
    return read is None or limit is None or read >= limit


def _announced(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0
