"""Views are exempt from ATOMIC_REQUESTS where their keys are, which need not be the default
database."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from rest_framework.views import APIView

from idempotency.http.decorators import idempotent
from idempotency.models import IdempotencyKey
from idempotency.rest_framework import IdempotencyMixin
from idempotency.stores.sessions import non_atomic


class KeysElsewhere:
    """Keeps the keys, and what is written with them, on a database of their own."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "payments" if model is IdempotencyKey else None


class Protected(IdempotencyMixin, APIView):
    pass


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@pytest.mark.parametrize(
    "protect",
    [Protected.as_view, lambda: idempotent(plain), lambda: non_atomic(plain)],
    ids=["mixin", "decorator", "page"],
)
def test_view_is_exempt_on_the_database_of_its_keys(settings: Any, protect: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.KeysElsewhere"]
    assert protect()._non_atomic_requests == {"payments", "default"}
