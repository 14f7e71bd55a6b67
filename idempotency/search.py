"""Find a key by what an operator has in hand: the key, the account and the key, or a log line.

The digest's index leads to a key whose route and account are known. No index leads to a bare key:
one more would cost every payment (a hash index, the cheapest: 4 % of the time of a claim and its
completion, and a fifth to two fifths more WAL). So a large table is looked at as far as half a
second allows: under the digests of all known routes and accounts, and through the newest keys. What
that leaves out is said.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Max, Min, QuerySet
from django.utils.translation import gettext as _

from idempotency.core.keys import Scope
from idempotency.http.routes import protected_routes
from idempotency.models import IdempotencyKey
from idempotency.stores.bounds import QueryTooSlow, statement_timeout

__all__ = ["Found", "find_keys", "recent_routes"]

#: Routes are taken from this many of the newest keys: a walk of the primary key, whatever the
#: size of the table. A route that was silent for longer can still be given in the URL.
RECENT_KEYS = 20_000
#: How long a search may look where no index leads.
PATIENCE = timedelta(seconds=0.5)
#: Up to this cost by the planner's reckoning a plain query is quick: a table of a million keys, or
#: one with an index on the key.
CHEAP = 50_000
#: Digests that are tried, and how long that may take.
CANDIDATES = 20_000
#: Blocks of 8 kB that tell which accounts there are, and the keys that are read at once.
SAMPLED_BLOCKS, STEP = 2000, 250_000

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
    if _is_cheap(named):
        return Found(named)
    looked = _among_the_newest(named, time.monotonic() + PATIENCE.total_seconds())
    return _found(keys, looked.found, looked, _("the account's keys on the routes in use"))


def _of_any_tenant(keys: QuerySet[IdempotencyKey], key: str) -> Found:
    named = keys.filter(key=key)
    if _is_cheap(named):
        return Found(named)
    until = time.monotonic() + PATIENCE.total_seconds()
    candidates = _among_the_known(keys, key)
    looked = _among_the_newest(named, until)
    known = _("the keys of the accounts that a sample shows, on the routes in use")
    return _found(keys, candidates | looked.found, looked, known)


def _digests(routes: Iterable[str], tenants: Iterable[str], key: str) -> list[bytes]:
    """The digests of a key on these routes and of these accounts, also where the route does not
    count; the first accounts first."""
    scopes = [
        scope
        for tenant in tenants
        for scope in (
            Scope("", tenant, key, per_route=False),
            *(Scope(route, tenant, key) for route in routes),
        )
    ]
    return [scope.digest for scope in scopes[:CANDIDATES]]


def _is_cheap(rows: QuerySet[IdempotencyKey]) -> bool:
    """Whether a plain query is quick, by the planner's reckoning. Elsewhere tables are small."""
    if connections[rows.db].vendor != "postgresql":
        return True
    [plan] = json.loads(rows.order_by().explain(format="json"))
    cost: float = plan["Plan"]["Total Cost"]
    return cost <= CHEAP


def _among_the_known(keys: QuerySet[IdempotencyKey], key: str) -> set[int]:
    """The records of a key on the routes, and of the accounts, that a sample of the table shows."""
    try:
        with statement_timeout(keys.db, PATIENCE / 2):
            with connections[keys.db].cursor() as cursor:
                cursor.execute(_SAMPLE, [SAMPLED_BLOCKS])
                sampled = cursor.fetchall()
            routes = {route.name for route in protected_routes()}
            routes |= {route for route, _tenant in sampled if route is not None}
            tenants = [tenant for _route, tenant in sampled if tenant is not None]
            found = keys.filter(digest__in=_digests(sorted(routes), tenants, key))
            return set(found.order_by().values_list("pk", flat=True))
    except QueryTooSlow:
        return set()


@dataclass(frozen=True, slots=True)
class _Looked:
    """What came of looking at the keys one after the other, from the newest on."""

    found: set[int]
    #: All keys were looked at.
    all: bool
    #: Else those that were made since then; None: there was time for none.
    since: datetime | None = None


def _among_the_newest(named: QuerySet[IdempotencyKey], until: float) -> _Looked:
    """Look until then, by ``time.monotonic()``."""
    keys = IdempotencyKey.objects.using(named.db).order_by()
    ends = keys.aggregate(first=Min("pk"), last=Max("pk"))
    first, last = ends["first"] or 1, ends["last"] or 0
    below, found = last, set[int]()
    try:
        while below >= first and (left := until - time.monotonic()) > 0:
            with statement_timeout(named.db, timedelta(seconds=left)):
                step = named.filter(pk__gt=below - STEP, pk__lte=below).order_by()
                found.update(step.values_list("pk", flat=True))
            below -= STEP
    except QueryTooSlow:
        pass
    if below < first:
        return _Looked(found, all=True)
    seen = keys.filter(pk__gt=below).order_by("pk").values_list("created_at", flat=True)
    return _Looked(found, all=False, since=seen.first() if below < last else None)


def _found(
    keys: QuerySet[IdempotencyKey], numbers: set[int], looked: _Looked, besides: str
) -> Found:
    found = keys.filter(pk__in=numbers)
    if looked.all:
        return Found(found)
    where = [besides]
    if looked.since is not None:
        where.insert(0, _("all keys since %s") % f"{looked.since:%Y-%m-%d %H:%M} UTC")
    return Found(
        found,
        _(
            "No index leads to a key alone, and the table is too large to be read. This was looked "
            "at: %s. To be certain, search for the account, a blank and the key."
        )
        % "; ".join(where),
    )
