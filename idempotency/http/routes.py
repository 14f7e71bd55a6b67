"""Every mutating route of the project, and the policy that protects it, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.urls import URLPattern, URLResolver, get_resolver

from idempotency.core.policies import Policy
from idempotency.http.requests import build_policy, pattern_of

MUTATING = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one URL pattern. ``policy`` None: no key is read there."""

    method: str
    pattern: str
    view: Any
    policy: Policy | None

    @property
    def name(self) -> str:
        """As keys spell it: ``POST /v1/charges``."""
        return f"{self.method} {self.pattern}"


@cache
def mutating_routes() -> tuple[Route, ...]:
    """All routes that may change something, in URLconf order. Read once for each ROOT_URLCONF."""
    urlconf = getattr(django_settings, "ROOT_URLCONF", None)  # a worker may have none
    return tuple(
        route
        for pattern, callback in (_patterns(get_resolver(urlconf), "") if urlconf else ())
        for route in _routes(pattern_of(pattern), callback)
    )


def protected_routes() -> tuple[Route, ...]:
    """The routes that take a key."""
    return tuple(route for route in mutating_routes() if route.policy is not None)


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"ROOT_URLCONF", "IDEMPOTENCY"}:
        mutating_routes.cache_clear()


def _patterns(resolver: URLResolver, prefix: str) -> Iterator[tuple[str, Any]]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _patterns(entry, route)
        elif isinstance(entry, URLPattern):
            yield route, entry.callback


def _routes(pattern: str, callback: Any) -> Iterator[Route]:
    view = getattr(callback, "cls", None) or getattr(callback, "view_class", None)
    for method in MUTATING:
        if view is None:
            choices = getattr(callback, "idempotency_policy", None)
            policy = None if choices is None else _read(callback, partial(build_policy, choices))
            takes_key = policy is not None and method in policy.methods
        else:
            # A viewset's route names its actions by method; a class-based view has handlers.
            action = getattr(callback, "actions", {}).get(method.lower(), method.lower())
            if not hasattr(view, action):
                continue
            policy = _policy_of(view)
            takes_key = policy is not None and view.takes_idempotency_key(method, action, policy)
        yield Route(method, pattern, view or callback, policy if takes_key else None)


def _policy_of(view: Any) -> Policy | None:
    get_policy = getattr(view, "get_idempotency_policy", None)
    return None if get_policy is None else _read(view, get_policy)


def _read(view: Any, get_policy: Callable[[], Policy]) -> Policy:
    """The policy of a view; an error in it names the view."""
    try:
        return get_policy()
    except ImproperlyConfigured as error:
        name = f"{view.__module__}.{view.__qualname__}"
        raise ImproperlyConfigured(f"{name}: {error}") from error
