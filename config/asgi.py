"""ASGI entry point, for servers that speak it."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from django.core.asgi import get_asgi_application

from config import content_type

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_asgi_application()

# The broker of what requests enqueue. Below the application: it reads the settings.
import config.celery  # noqa: E402, F401

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def application(scope: dict[str, Any], receive: Any, send: Send) -> None:
    """Django, with a 400 for what it would raise at."""
    # As Django joins several.
    sent = b",".join(value for name, value in scope.get("headers", ()) if name == b"content-type")
    if content_type.can_be_read(sent.decode("latin-1")):
        await django(scope, receive, send)
        return
    start = {"type": "http.response.start", "status": 400}
    await send(start | {"headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": content_type.REFUSAL})
