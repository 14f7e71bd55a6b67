"""What the server hands to Django."""

from __future__ import annotations

from wsgiref.util import setup_testing_defaults

import pytest


@pytest.mark.parametrize("content_type", ["a/b; c*=bogus''x", "multipart/form-data; b*=no''x%ff"])
def test_a_content_type_that_django_cannot_read_is_a_400(content_type: str) -> None:
    from config.wsgi import application

    environ = {"CONTENT_TYPE": content_type}
    setup_testing_defaults(environ)
    told: list[str] = []
    body = b"".join(application(environ, lambda status, headers: told.append(status)))
    assert told == ["400 Bad Request"]
    assert b"Content-Type" in body
