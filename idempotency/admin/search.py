"""Find a key by what an operator has in hand: the key, the account and the key, or a log line."""

from __future__ import annotations

import re

from django.db.models import QuerySet

from idempotency.admin.filters import recent_routes
from idempotency.core.keys import Scope
from idempotency.models import IdempotencyKey

#: What logs show (`core.keys.log_digest`) up to the whole digest.
_DIGEST = re.compile(r"[0-9a-f]{12,64}")


def find_keys(keys: QuerySet[IdempotencyKey], term: str) -> QuerySet[IdempotencyKey]:
    """The keys that a search term names, exactly.

    - the first 12 or more hexadecimal digits of a digest, as logs show it: the digest's index;
    - ``ACCOUNT KEY``: the digests of that pair on every recent route, by the same index;
    - ``KEY``: no index leads there (one more would cost every payment), so this reads the table;
      the list's statement timeout bounds it.
    """
    term = term.strip()
    tenant, _, key = term.rpartition(" ")
    if tenant.strip():
        return _of_tenant(keys, tenant.strip(), key)
    if _DIGEST.fullmatch(term.lower()):
        found = _of_digest(keys, term.lower())
        if found.exists():
            return found
    return keys.filter(key=term)


def _of_digest(keys: QuerySet[IdempotencyKey], digits: str) -> QuerySet[IdempotencyKey]:
    lowest, highest = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
    return keys.filter(digest__gte=lowest, digest__lte=highest)


def _of_tenant(keys: QuerySet[IdempotencyKey], tenant: str, key: str) -> QuerySet[IdempotencyKey]:
    scopes = [Scope(route, tenant, key) for route in recent_routes(keys.db)]
    scopes.append(Scope("", tenant, key, per_route=False))
    found = keys.filter(digest__in=[scope.digest for scope in scopes])
    return found if found.exists() else keys.filter(tenant=tenant, key=key)
