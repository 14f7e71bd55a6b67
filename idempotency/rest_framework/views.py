"""``GET …/idempotency-keys/{key}``: what became of a caller's own key."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from idempotency.core.keys import Scope, nameless
from idempotency.http import protection
from idempotency.http.routes import protected_routes
from idempotency.stores import get_store
from idempotency.stores.base import KeyRecord


class IdempotencyKeyView(APIView):
    """Lists the caller's keys of that name, newest first; ``?route=POST /v1/charges`` narrows it.

    A key is looked up by its digest, so the routes are asked one by one: those that take a key, or
    the one that is named. Unknown or somebody else's: an empty list.
    """

    http_method_names = ["get", "head", "options"]

    def get_idempotency_tenant(self) -> str:
        """The account whose keys are shown; the same as in the views that take the keys."""
        return protection.default_tenant(self.request.user)

    def get(self, request: Request, key: str) -> Response:
        route = request.query_params.get("route")
        wanted = None if route is None else nameless(route)
        tenant = self.get_idempotency_tenant()
        digests = {
            Scope(route.name, tenant, key, per_route=route.policy.scope == "route").digest
            for route in protected_routes()
            if route.policy is not None and wanted in (None, nameless(route.name))
        }
        found = get_store().find(list(digests))
        # A key of the whole account was used at one of its routes.
        data = [_describe(record) for record in found if wanted in (None, nameless(record.route))]
        return Response({"data": data})


def _describe(record: KeyRecord) -> dict[str, Any]:
    response = record.response
    return {
        "key": record.key,
        "route": record.route,
        "state": record.state,
        "attempt": record.attempt,
        "status_code": None if response is None else response.status,
        "resource": None if response is None else response.resource,
        "created": record.created_at,
        "expires": record.expires_at,
    }
