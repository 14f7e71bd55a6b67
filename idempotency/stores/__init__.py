"""Chooses the store of a database: the PostgreSQL functions where they are, the portable ORM
elsewhere."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

from django.db import connections, router
from django.utils.module_loading import import_string

from idempotency.conf import settings
from idempotency.stores.base import Store

if TYPE_CHECKING:
    from idempotency.models import IdempotencyKey


def get_store(using: str | None = None) -> Store:
    """The store of a database alias; by default the one the routers write keys to."""
    alias = using or router.db_for_write(_keys())
    return _store(alias, settings().store or _fastest(alias))


@cache
def _keys() -> type[IdempotencyKey]:
    from idempotency.models import IdempotencyKey

    return IdempotencyKey


@cache
def _fastest(alias: str) -> str:
    if connections[alias].vendor == "postgresql":
        return "idempotency.stores.postgres.PostgresStore"
    return "idempotency.stores.database.DatabaseStore"


@cache
def _store(alias: str, path: str) -> Store:
    return cast(Store, import_string(path)(alias))
