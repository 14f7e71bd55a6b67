"""Probes: is the process alive, and may it be given traffic?

`/healthz` touches nothing, so that a database outage restarts no worker. `/readyz` asks what a
payment needs: the database, its migrations, and a partition for the answers of tomorrow. Redis is
reported but not needed: without it the product is slower, never wrong.

Both answer whatever hangs: a database that says nothing for `DATABASE_PATIENCE` seconds is not
ready, and Redis is waited for half a second to connect and half a second to answer.
"""

from collections.abc import Callable

import redis
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from idempotency import partitions
from idempotency.conf import settings as idempotency_settings
from idempotency.observability.looks import Look, NoAnswer
from payments import problems
from payments import serializers as shapes
from payments.api import PaymentsView
from payments.openapi import problem_responses

#: Seconds.
DATABASE_PATIENCE = 1.0
REDIS_TIMEOUT = 0.5

_look = Look(DATABASE_PATIENCE)


class _Probe(PaymentsView):
    authentication_classes = []
    permission_classes = []


class LivenessView(_Probe):
    @extend_schema(
        operation_id="healthz",
        summary="Whether the process answers",
        auth=[],
        responses={200: shapes.Health, **problem_responses("not_acceptable")},
    )
    def get(self, request: Request) -> Response:
        return Response({"status": "ok"})


class ReadinessView(_Probe):
    @extend_schema(
        operation_id="readyz",
        summary="Whether the process can take payments",
        auth=[],
        responses={200: shapes.Readiness, **problem_responses("not_acceptable", "not_ready")},
    )
    def get(self, request: Request) -> Response:
        checks = {**_ask_the_database(), "redis": _redis()}
        if all(outcome == "ok" for name, outcome in checks.items() if name != "redis"):
            return Response({"status": "ok", "checks": checks})
        missing = ", ".join(name for name, outcome in checks.items() if outcome != "ok")
        base = problems.base_of(request)
        return problems.response(
            problems.body("not_ready", f"Not ready: {missing}.", base=base, checks=checks)
        )


def _ask_the_database() -> dict[str, str]:
    try:
        return _look.at(lambda: {name: _run(check) for name, check in _CHECKS.items()})
    except NoAnswer:
        return dict.fromkeys(_CHECKS, "no answer")


def _run(check: Callable[[], str]) -> str:
    try:
        return check()
    except DatabaseError:
        # What exactly is wrong belongs in the log of the database, not in a public answer.
        return "unavailable"


def _database() -> str:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT 1")
    return "ok"


def _migrations() -> str:
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return f"{len(pending)} to apply" if pending else "ok"


def _partitions() -> str:
    ahead = partitions.days_ahead(DEFAULT_DB_ALIAS)
    return "none for tomorrow" if ahead == 0 else "ok"


def _redis() -> str:
    url = idempotency_settings().redis_url
    if not url:
        return "not configured"
    client = redis.Redis.from_url(
        url, socket_timeout=REDIS_TIMEOUT, socket_connect_timeout=REDIS_TIMEOUT
    )
    try:
        client.ping()
    except redis.RedisError:
        return "unavailable"
    finally:
        client.close()
    return "ok"


_CHECKS: dict[str, Callable[[], str]] = {
    "database": _database,
    "migrations": _migrations,
    "partitions": _partitions,
}
