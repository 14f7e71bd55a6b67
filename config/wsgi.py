"""WSGI entry point: `gunicorn -c config/gunicorn.py config.wsgi`."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

from config import content_type

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_wsgi_application()

# The broker of what requests enqueue. Below the application: it reads the settings.
import config.celery  # noqa: E402, F401


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Django, with a 400 for what it would raise at."""
    if content_type.can_be_read(environ.get("CONTENT_TYPE", "")):
        return django(environ, start_response)
    start_response("400 Bad Request", [("Content-Type", "text/plain")])
    return [content_type.REFUSAL]
