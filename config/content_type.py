"""What Django would raise at before any of its middleware, under WSGI and ASGI: a parameter of the
Content-Type that names a character set which there is not (RFC 2231)."""

from django.utils.http import parse_header_parameters

REFUSAL = b"The Content-Type cannot be read. Send it without parameters of RFC 2231.\n"


def can_be_read(content_type: str) -> bool:
    """Whether Django can read it."""
    try:
        parse_header_parameters(content_type)
    except (LookupError, ValueError):
        return False
    return True
