"""System checks: what is configured against what the engine needs. README lists the ids.

Those of settings and routes run with every ``check``; those that ask the database, the ``database``
tag, run with ``migrate`` and ``check --database``.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils.module_loading import import_string

from idempotency import encryption, partitions
from idempotency.conf import Settings, settings
from idempotency.http.requests import POLICY_NAMES, build_policy
from idempotency.http.routes import MUTATING, Route, mutating_routes, protected_routes
from idempotency.models import IdempotencyKey

TAG = "idempotency"

#: Body fields that make two requests two payments. A name is sensitive when one of its words is.
_MONEY_WORDS = frozenset(
    {
        "amount",
        "amounts",
        "currency",
        "price",
        "total",
        "destination",
        "recipient",
        "beneficiary",
        "payee",
        "account",
        "iban",
        "card",
        "source",
    }
)
#: These mean money only as the whole name: ``valid_to`` is a date.
_MONEY_NAMES = frozenset({"to", "from", "target", "value", "quantity"})
_CLASS_NAMES = frozenset(f"idempotency_{name}" for name in (*POLICY_NAMES, "actions"))

Messages = Iterator[CheckMessage]


def _with_settings(check: Callable[[Settings], Messages]) -> Callable[..., list[CheckMessage]]:
    """Run a check of settings or routes, unless the settings themselves cannot be read: E001."""

    def run(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
        try:
            return list(check(settings()))
        except ImproperlyConfigured:
            return []

    # No more of it: Django would look for **kwargs in the signature of what is wrapped.
    run.__name__, run.__doc__ = check.__name__, check.__doc__
    return run


@register(TAG)
def check_readable(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """E001: a setting or a view's policy that cannot be read."""
    try:
        chosen = settings()
        mutating_routes()
        import_string(chosen.store or "idempotency.stores.get_store")
    except (ImproperlyConfigured, ImportError) as error:
        hint = "Correct IDEMPOTENCY in your settings, or the view's policy."
        return [Error(str(error), hint=hint, id="idempotency.E001")]
    return []


@register(TAG)
@_with_settings
def check_durations(chosen: Settings) -> Messages:
    """E002: a retention shorter than a TTL. E003: a duration or count that must be positive."""
    for owner, ttl in _values("ttl"):
        if ttl > chosen.retention:
            yield Error(
                f"{owner}: keys live for {ttl}, longer than answers are kept "
                f"(RETENTION, {chosen.retention}).",
                hint="Raise IDEMPOTENCY['RETENTION'] or lower the TTL.",
                id="idempotency.E002",
            )
    for name in ("ttl", "lease"):
        for owner, value in _values(name):
            if value <= timedelta(0):
                yield _not_positive(f"{owner}: the {name}", value)
    if chosen.max_deadline <= timedelta(0):
        yield _not_positive("IDEMPOTENCY['MAX_DEADLINE']", chosen.max_deadline)
    for name in ("batch_size", "max_batches", "partition_days_ahead", "resume_attempts"):
        if getattr(chosen, name) < 1:
            yield _not_positive(f"IDEMPOTENCY[{name.upper()!r}]", getattr(chosen, name))


@register(TAG)
@_with_settings
def check_reconciliation(chosen: Settings) -> Messages:
    """W007: a call that counts as never made while an attempt may still be making it."""
    for owner, lease in _values("lease"):
        if lease >= chosen.reconcile_withdraw_after:
            yield Warning(
                f"{owner}: an attempt has {lease} for its call, and after "
                f"{chosen.reconcile_withdraw_after} (RECONCILE_WITHDRAW_AFTER) a call that the "
                "other side has nothing of counts as never made.",
                hint="Raise IDEMPOTENCY['RECONCILE_WITHDRAW_AFTER'] far above the lease.",
                id="idempotency.W007",
            )


@register(TAG, Tags.security)
@_with_settings
def check_encryption(chosen: Settings) -> Messages:
    """E006: keys that cannot be used, so that no answer could be kept."""
    try:
        encryption.writing_key()
    except ImproperlyConfigured as error:
        hint = (
            "A key is made by: python -c "
            "'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
        )
        yield Error(str(error), hint=hint, id="idempotency.E006")


def _not_positive(name: str, value: Any) -> CheckMessage:
    hint = (
        "A lease of zero would let every retry start the work again while it runs; a deadline of "
    )
    hint += "zero is always over."
    return Error(f"{name} must be positive, not {value}.", hint=hint, id="idempotency.E003")


@register(TAG, Tags.security)
@_with_settings
def check_fingerprint_excludes(chosen: Settings) -> Messages:
    """E004: a field about money that does not tell two requests apart."""
    for owner, excluded in _values("fingerprint_exclude"):
        for name in sorted(excluded):
            if (
                _is_about_money(name)
                and f"{owner}:{name}" not in chosen.fingerprint_exclude_allowed
            ):
                yield Error(
                    f"{owner} leaves {name!r} out of the fingerprint: a retry with another {name} "
                    "would get the first answer as if it had been done.",
                    hint="Take it off idempotency_fingerprint_exclude, or add "
                    f"'{owner}:{name}' to IDEMPOTENCY['FINGERPRINT_EXCLUDE_ALLOWED'].",
                    id="idempotency.E004",
                )


@register(TAG)
@_with_settings
def check_view_attributes(chosen: Settings) -> Messages:
    """W006: an ``idempotency_*`` attribute that nothing reads, so probably a misspelt one."""
    for view in dict.fromkeys(route.view for route in protected_routes()):
        if not isinstance(view, type):
            continue  # the decorator refuses unknown options itself
        for name in dir(view):
            if not name.startswith("idempotency_") or name in _CLASS_NAMES:
                continue
            close = difflib.get_close_matches(name, _CLASS_NAMES, n=1)
            yield Warning(
                f"{_path(view)}.{name} is not a policy of this package and has no effect.",
                hint=f"Did you mean {close[0]}?" if close else "Give it another prefix.",
                id="idempotency.W006",
            )


@register(TAG)
@_with_settings
def check_server_timeout(chosen: Settings) -> Messages:
    """W001: a request may run longer than its lease, as far as GUNICORN_CMD_ARGS tells."""
    timeout = _gunicorn_timeout(os.environ.get("GUNICORN_CMD_ARGS", ""))
    if timeout is None:
        return
    for owner, lease in _values("lease"):
        if lease <= timeout:
            yield Warning(
                f"{owner}: the lease ({lease}) is not longer than a request may run "
                f"(gunicorn's timeout, {timeout}).",
                hint="Raise the lease or lower the timeout. Otherwise a retry may take the key "
                "over while the first request still runs, whose work is then rolled back.",
                id="idempotency.W001",
            )


def _gunicorn_timeout(arguments: str) -> timedelta | None:
    """``--timeout 30``, ``--timeout=30``, ``-t 30`` or ``-t30``; None when it is not given or 0."""
    found = None
    for word, following in pairwise([*shlex.split(arguments), ""]):
        match = re.fullmatch(r"(?:--timeout=|-t)(\d+)", word)
        if match:
            found = int(match[1])
        elif word in ("--timeout", "-t") and following.isdigit():
            found = int(following)
    return timedelta(seconds=found) if found else None


@register(TAG)
@_with_settings
def check_keys_database(chosen: Settings) -> Messages:
    """E005, E007, W004, I001, I002: how the database of the keys is configured."""
    alias = router.db_for_write(IdempotencyKey)
    connection = connections[alias]
    configured = connection.settings_dict
    if not configured["AUTOCOMMIT"]:
        yield Error(
            f"AUTOCOMMIT is off for {alias!r}: no keyed request can run there.",
            hint="Take it out of the settings of this database: a claim has to commit before its "
            "work begins.",
            id="idempotency.E007",
        )
    if configured["ATOMIC_REQUESTS"]:
        yield Info(
            f"ATOMIC_REQUESTS is on for {alias!r}; protected views are exempt from it.",
            hint="The claim has to commit before the work, so the engine opens the work's "
            "transaction itself. The view is as atomic as before.",
            id="idempotency.I001",
        )
    if connection.vendor == "sqlite":
        mode = str(configured["OPTIONS"].get("transaction_mode") or "DEFERRED").upper()
        if mode == "DEFERRED":
            yield Warning(
                f"The SQLite database {alias!r} begins its transactions as DEFERRED: nearly every "
                "concurrent write fails with 'database is locked'.",
                hint='Set OPTIONS["transaction_mode"] to "IMMEDIATE".',
                id="idempotency.W004",
            )
    yield from _check_isolation(alias, connection.vendor, configured["OPTIONS"])


def _check_isolation(alias: str, vendor: str, options: dict[str, Any]) -> Messages:
    level = _isolation_level(vendor, options)
    if level == "read uncommitted" and vendor != "postgresql":  # PostgreSQL reads it as committed
        yield Error(
            f"The database {alias!r} runs READ UNCOMMITTED: a retry could be answered with an "
            "answer that is rolled back afterwards.",
            hint='Use "read committed".',
            id="idempotency.E005",
        )
    if vendor == "postgresql" and level in ("repeatable read", "serializable"):
        yield Info(
            f"The database {alias!r} runs {level.upper()}: a lost race ends with a serialization "
            "failure, which is tried again or answered with 409 or 503.",
            hint="request.idempotency.renew() conflicts with the completion at this level; "
            "choose a longer lease instead.",
            id="idempotency.I002",
        )


def _isolation_level(vendor: str, options: dict[str, Any]) -> str:
    """The configured level in words; empty when nothing says."""
    if vendor == "sqlite":
        dirty = re.search(
            r"read_uncommitted\s*=\s*(1|on|true|yes)", str(options.get("init_command")), re.I
        )
        return "read uncommitted" if dirty else ""
    level = options.get("isolation_level")
    if level is None:
        given = re.search(
            r"default_transaction_isolation=((?:[^\s\\]|\\ )+)", str(options.get("options", ""))
        )
        level = given[1].replace("\\ ", " ") if given else ""
    # psycopg's IsolationLevel is an enum, whose names have underscores.
    return str(getattr(level, "name", level)).replace("_", " ").lower()


@register(TAG, Tags.security)
@_with_settings
def check_unprotected_routes(chosen: Settings) -> Messages:
    """W005, with ``CHECK_UNPROTECTED``: a mutating route that takes no key, by name."""
    if not chosen.check_unprotected:
        return
    unprotected: dict[tuple[str, Any], list[str]] = {}
    for route in mutating_routes():
        if route.policy is None and not _is_exempt(route, chosen.unprotected_allowed):
            unprotected.setdefault((route.pattern, route.view), []).append(route.method)
    for (pattern, view), methods in unprotected.items():
        yield Warning(
            f"{', '.join(methods)} {pattern} ({_path(view)}) takes no idempotency key: a retry "
            "runs it again.",
            hint="Add IdempotencyMixin or @idempotent, or name the route or the view in "
            "IDEMPOTENCY['UNPROTECTED_ALLOWED'].",
            id="idempotency.W005",
        )


def _is_exempt(route: Route, allowed: Sequence[str]) -> bool:
    """Forms of Django's admin and our own, methods a view does not answer, and what is allowed."""
    path = _path(route.view)
    if path.startswith(("django.", "idempotency.")) or hasattr(route.view, "model_admin"):
        return True
    if route.method not in _answered_methods(route.view):
        return True
    names = (path, route.pattern, route.name)
    return any(fnmatchcase(name, pattern) for pattern in allowed for name in names)


def _answered_methods(view: Any) -> Sequence[str]:
    """The methods of a view that change something.

    A function's are known when ``require_http_methods`` wraps it; else they are those of its
    policy, and without one all.
    """
    protected = hasattr(view, "idempotency_policy")
    while not isinstance(view, type):
        names = view.__code__.co_freevars if inspect.isfunction(view) else ()
        variables = dict(zip(names, getattr(view, "__closure__", None) or (), strict=False))
        if "request_method_list" in variables:
            return [str(method) for method in variables["request_method_list"].cell_contents]
        if not hasattr(view, "__wrapped__"):
            break
        view = view.__wrapped__
    return () if protected else MUTATING


# Not under our own tag: from 6.1 on Django asks every database as soon as a tag is named.
@register(Tags.database)
def check_databases(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W002 and W003, on each PostgreSQL database that has our tables."""
    try:
        return [
            message
            for alias in databases or ()
            if router.allow_migrate_model(alias, IdempotencyKey)
            and connections[alias].vendor == "postgresql"
            for message in _check_postgres(settings(), alias)
        ]
    except ImproperlyConfigured:
        return []


def _check_postgres(chosen: Settings, alias: str) -> Messages:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'")
        timeout = timedelta(milliseconds=cursor.fetchone()[0])
    for owner, lease in _values("lease"):
        if timedelta(0) < lease <= timeout:
            yield Warning(
                f"{owner}: the lease ({lease}) is not longer than a statement may take "
                f"(statement_timeout of {alias!r}, {timeout}).",
                hint="Raise the lease or lower statement_timeout.",
                id="idempotency.W002",
            )
    ahead = partitions.days_ahead(alias)
    if ahead is not None and ahead < chosen.partition_days_alarm:
        yield Warning(
            f"Only {ahead} day(s) of partitions are ready on {alias!r}.",
            hint="Run `manage.py idempotency_create_partitions` and see why its schedule does not.",
            id="idempotency.W003",
        )


def _values(name: str) -> Iterator[tuple[str, Any]]:
    """What the settings say of one policy, then what each view says that chose otherwise."""
    default = getattr(build_policy({}), name)
    yield "IDEMPOTENCY", default
    views = {_path(route.view): route.policy for route in protected_routes()}
    for path, policy in views.items():
        if (value := getattr(policy, name)) != default:
            yield path, value


def _is_about_money(name: str) -> bool:
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().replace("-", "_").split("_")
    return not _MONEY_WORDS.isdisjoint(words) or "_".join(words) in _MONEY_NAMES


def _path(view: Any) -> str:
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"
