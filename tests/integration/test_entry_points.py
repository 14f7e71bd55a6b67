"""What a server hands to Django."""

from __future__ import annotations

import asyncio
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

unreadable = pytest.mark.parametrize(
    "content_type", ["a/b; c*=bogus''x", "multipart/form-data; b*=no''x%ff"]
)


@unreadable
def test_a_content_type_that_django_cannot_read_is_a_400(content_type: str) -> None:
    from config.wsgi import application

    environ = {"CONTENT_TYPE": content_type}
    setup_testing_defaults(environ)
    told: list[str] = []
    body = b"".join(application(environ, lambda status, headers: told.append(status)))
    assert told == ["400 Bad Request"]
    assert b"Content-Type" in body


@unreadable
def test_it_is_one_under_asgi_too(content_type: str) -> None:
    from config.asgi import application

    told: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    headers = [(b"content-type", content_type.encode()), (b"content-type", b"text/plain")]
    scope = {"type": "http", "headers": headers}
    asyncio.run(application(scope, None, send))
    assert [message.get("status") for message in told] == [400, None]
    assert b"Content-Type" in told[1]["body"]
