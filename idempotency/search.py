"""Find a key by what an operator has in hand: the key, the account and the key, or a log line.

The digest's index leads to a key whose route and account are known. No index leads to a bare key:
one more would cost every payment (a hash index, the cheapest: 10 to 25 % more WAL, measured beside
a table without). So a large table is looked at as far as half a second allows: under the digests of
the known routes and accounts, and through the newest keys. What that leaves out is said.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Max, QuerySet
from django.utils.translation import gettext as _

from idempotency.core.keys import Scope
from idempotency.http.routes import protected_routes
from idempotency.models import IdempotencyKey
from idempotency.stores.bounds import QueryTooSlow, is_cheap, statement_timeout
from idempotency.stores.walks import Walked, walk

__all__ = ["Found", "find_keys", "recent_routes"]

#: Routes are taken from this many of the newest keys: a walk of the primary key, whatever the
#: size of the table. A route that was silent for longer can still be given in the URL.
RECENT_KEYS = 20_000
#: How long a search may look where no index leads: the last quarter through the newest keys.
PATIENCE = timedelta(seconds=0.6)
#: Accounts whose digests are looked up in one statement.
ACCOUNTS = 250
#: Blocks of 8 kB that tell which accounts there are, and seconds for which they do.
SAMPLED_BLOCKS, SAMPLE_LASTS = 500, 600.0

#: What logs show (`core.keys.log_digest`) up to the whole digest.
_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_SAMPLE = """
    SELECT route, tenant FROM idempotency_idempotencykey
    TABLESAMPLE SYSTEM (least(100, 100.0 * %s / (
        SELECT greatest(1, relpages) FROM pg_class
        WHERE oid = 'idempotency_idempotencykey'::regclass
    )))
    GROUP BY GROUPING SETS ((route), (tenant)) ORDER BY count(*) DESC
"""
_LOOK_UP = "SELECT id FROM idempotency_idempotencykey WHERE digest = ANY (%s)"


@dataclass(frozen=True, slots=True)
class Found:
    """The keys that a search term names, exactly. ``advice`` is empty when there cannot be more."""

    keys: QuerySet[IdempotencyKey]
    advice: str = ""


def find_keys(keys: QuerySet[IdempotencyKey], term: str) -> Found:
    """Search for a term among ``keys``.

    - the first 12 or more hexadecimal digits of a digest, as logs show it;
    - ``ACCOUNT KEY``: that pair on every known route;
    - ``KEY``: of any account.
    """
    term = term.strip()
    tenant, _blank, key = term.rpartition(" ")
    if tenant.strip():
        return _of_tenant(keys, tenant.strip(), key)
    if _DIGEST.fullmatch(term.lower()):
        found = _of_digest(keys, term.lower())
        if found.exists():
            return Found(found)
    return _of_any_tenant(keys, term)


def recent_routes(using: str) -> list[str]:
    """The routes of the newest keys, sorted."""
    keys = IdempotencyKey.objects.using(using)
    newest = keys.aggregate(newest=Max("pk"))["newest"] or 0
    recent = keys.filter(pk__gt=newest - RECENT_KEYS)
    return sorted(recent.values_list("route", flat=True).distinct())


def _of_digest(keys: QuerySet[IdempotencyKey], digits: str) -> QuerySet[IdempotencyKey]:
    lowest, highest = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
    return keys.filter(digest__gte=lowest, digest__lte=highest)


def _of_tenant(keys: QuerySet[IdempotencyKey], tenant: str, key: str) -> Found:
    routes = {route.name for route in protected_routes()}.union(recent_routes(keys.db))
    found = keys.filter(digest__in=_digests(routes, [tenant], key))
    if found.exists():
        return Found(found)
    named = keys.filter(tenant=tenant, key=key)
    if is_cheap(named.order_by()):
        return Found(named)
    walked = walk(named, PATIENCE.total_seconds())
    return _found(keys, set(), walked, _("the account's keys on the routes in use"))


def _of_any_tenant(keys: QuerySet[IdempotencyKey], key: str) -> Found:
    named = keys.filter(key=key)
    if is_cheap(named.order_by()):
        return Found(named)
    until = time.monotonic() + PATIENCE.total_seconds()
    candidates, accounts = _among_the_known(keys, key, until - PATIENCE.total_seconds() / 4)
    walked = walk(named, until - time.monotonic())
    known = _("the keys of the %d most active accounts on the routes in use") % accounts
    return _found(keys, candidates, walked, known)


def _digests(routes: Iterable[str], tenants: Iterable[str], key: str) -> list[bytes]:
    """The digests of a key on these routes and of these accounts, also where the route does not
    count."""
    scopes = [
        scope
        for tenant in tenants
        for scope in (
            Scope("", tenant, key, per_route=False),
            *(Scope(route, tenant, key) for route in routes),
        )
    ]
    return [scope.digest for scope in scopes]


def _among_the_known(
    keys: QuerySet[IdempotencyKey], key: str, until: float
) -> tuple[set[int], int]:
    """The records of a key on the routes, and of the accounts, that a sample of the table shows;
    and of how many accounts there was time to look."""
    found, accounts = set[int](), 0
    try:
        with statement_timeout(keys.db, PATIENCE / 2):
            routes, tenants = _known(keys.db)
        while accounts < len(tenants) and (left := until - time.monotonic()) > 0:
            some = tenants[accounts : accounts + ACCOUNTS]
            with statement_timeout(keys.db, timedelta(seconds=left)):
                found |= _numbers(keys.db, _digests(routes, some, key))
            accounts += len(some)
    except QueryTooSlow:
        pass
    return found, accounts


def _numbers(using: str, digests: list[bytes]) -> set[int]:
    # One array: a thousand parameters take Django longer than the look-ups take PostgreSQL.
    with connections[using].cursor() as cursor:
        cursor.execute(_LOOK_UP, [digests])
        return {number for (number,) in cursor.fetchall()}


def _known(using: str) -> tuple[list[str], list[str]]:
    """Routes, and accounts, the most active ones first; as they were some minutes ago."""
    sampled_at, routes, tenants = _sampled.get(using, (-math.inf, [], []))
    if time.monotonic() - sampled_at > SAMPLE_LASTS:
        routes, tenants = _sample(using)
        _sampled[using] = time.monotonic(), routes, tenants
    return routes, tenants


def _sample(using: str) -> tuple[list[str], list[str]]:
    with connections[using].cursor() as cursor:
        cursor.execute(_SAMPLE, [SAMPLED_BLOCKS])
        sampled = cursor.fetchall()
    routes = {route.name for route in protected_routes()}
    routes |= {route for route, _tenant in sampled if route is not None}
    return sorted(routes), [tenant for _route, tenant in sampled if tenant is not None]


_sampled: dict[str, tuple[float, list[str], list[str]]] = {}


def _found(
    keys: QuerySet[IdempotencyKey], candidates: set[int], walked: Walked, besides: str
) -> Found:
    found = keys.filter(pk__in=candidates.union(key.pk for key in walked.found))
    if walked.since is None:
        return Found(found)
    where = [besides]
    since = _created_at(keys.db, walked.since)
    if since is not None:
        where.insert(0, _("all keys since %s") % f"{since:%Y-%m-%d %H:%M} UTC")
    return Found(
        found,
        _(
            "No index leads to a key alone, and the table is too large to be read. This was looked "
            "at: %s. To be certain, search for the account, a blank and the key."
        )
        % "; ".join(where),
    )


def _created_at(using: str, number: int) -> datetime | None:
    """When the first record from this number on was made; None: there is none."""
    keys = IdempotencyKey.objects.using(using).filter(pk__gte=number).order_by("pk")
    return keys.values_list("created_at", flat=True).first()
