"""The settings: one dict, ``PAYMENTS_WEBHOOKS``; an unknown name is an error."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

DEFAULTS: dict[str, Any] = {
    # Let webhooks go to this machine, and over http. For the demo: whoever may write an endpoint
    # can then call whatever listens on loopback.
    "ALLOW_LOOPBACK": False,
    # What the gateway signs its events with, newest first; more than one while they are changed.
    "GATEWAY_SECRETS": (),
    # Seconds that one delivery may take as a whole.
    "TIMEOUT": 10.0,
}


def allow_loopback() -> bool:
    return bool(_get("ALLOW_LOOPBACK"))


def gateway_secrets() -> tuple[str, ...]:
    return tuple(_get("GATEWAY_SECRETS"))


def timeout() -> float:
    return float(_get("TIMEOUT"))


def _get(name: str) -> Any:
    given = getattr(settings, "PAYMENTS_WEBHOOKS", {})
    if unknown := given.keys() - DEFAULTS:
        names = ", ".join(sorted(unknown))
        raise ImproperlyConfigured(f"PAYMENTS_WEBHOOKS: unknown names {names}")
    return given.get(name, DEFAULTS[name])
