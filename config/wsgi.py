"""WSGI entry point: `gunicorn -c config/gunicorn.py config.wsgi`."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.utils.http import parse_header_parameters

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_wsgi_application()

# The broker of what requests enqueue. Below the application: it reads the settings.
import config.celery  # noqa: E402, F401


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Django, but for what it would raise at before any of its middleware: a parameter of the
    Content-Type that names a character set which there is not (RFC 2231)."""
    try:
        parse_header_parameters(environ.get("CONTENT_TYPE", ""))
    except (LookupError, ValueError):
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [b"The Content-Type cannot be read. Send it without parameters of RFC 2231.\n"]
    return django(environ, start_response)
