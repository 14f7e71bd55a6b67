"""The settings: one dict, ``IDEMPOTENCY``; one table of defaults; one frozen object; an unknown
name is an error.

>>> from idempotency.conf import settings
>>> settings().ttl
datetime.timedelta(days=1)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

#: Name in ``IDEMPOTENCY`` → default. Durations are seconds (a number) or a timedelta.
DEFAULTS: dict[str, Any] = {
    # Policy defaults; each view may choose its own (``idempotency_ttl`` and so on).
    "REQUIRED": False,
    "METHODS": ("POST", "PATCH"),
    "TTL": 24 * 3600,
    "LEASE": 30,
    "SCOPE": "route",
    "BODY_FIELD": None,
    "BUSY": "reject",
    "WAIT": 2.0,
    "FINGERPRINT": "canonical",
    "FINGERPRINT_EXCLUDE": (),
    # "path.to.View:field" for each field about money that a view leaves out on purpose.
    "FINGERPRINT_EXCLUDE_ALLOWED": (),
    "STORED_STATUSES": None,
    "MAX_RESPONSE_BYTES": 1024 * 1024,
    "KEY_MIN_LENGTH": 1,
    "KEY_UUID_ONLY": False,
    # The service.
    "RETRY_AFTER": 2,
    "RETRY_BUDGET_RATIO": 0.2,
    "RETRY_BUDGET_FLOOR": 60,
    "RETRY_BUDGET_WINDOW": 60,
    "MAX_DEADLINE": 30,
    "RETENTION": 30 * 24 * 3600,
    "PARTITION_DAYS_AHEAD": 14,
    "PARTITION_DAYS_ALARM": 3,
    "RECLAIM_GRACE": 0,
    "RESUME_ATTEMPTS": 20,
    "RECONCILE_AFTER": 60,
    "RECONCILE_WITHDRAW_AFTER": 3600,
    "RECONCILE_ALERT_AFTER": 900,
    # People who settle what the jobs could not.
    "LOOK_UP_TIMEOUT": 10,
    "FOUR_EYES_ABOVE": None,
    "APPROVE_WITHIN": 4 * 3600,
    "OUTBOX_THREADS": 16,
    "OUTBOX_RETENTION": 30 * 24 * 3600,
    "BATCH_SIZE": 1000,
    "MAX_BATCHES": 100,
    "REDIS_URL": None,
    "REDIS_TIMEOUT": 0.1,
    "PROBLEM_TYPE_BASE": None,
    "STORE": None,
    "SECRET": None,
    "ENCRYPTION_KEYS": (),
    "MASKED_FIELDS": (),
    "CHECK_UNPROTECTED": False,
    "UNPROTECTED_ALLOWED": (),
}

_DURATIONS = frozenset(
    {
        "TTL",
        "LEASE",
        "WAIT",
        "MAX_DEADLINE",
        "RETENTION",
        "OUTBOX_RETENTION",
        "RECLAIM_GRACE",
        "RECONCILE_AFTER",
        "RECONCILE_WITHDRAW_AFTER",
        "RECONCILE_ALERT_AFTER",
        "LOOK_UP_TIMEOUT",
        "APPROVE_WITHIN",
        "REDIS_TIMEOUT",
    }
)
_SEQUENCES = frozenset(
    {
        "METHODS",
        "FINGERPRINT_EXCLUDE",
        "FINGERPRINT_EXCLUDE_ALLOWED",
        "MASKED_FIELDS",
        "STORED_STATUSES",
        "UNPROTECTED_ALLOWED",
    }
)
#: What a number may be, from least to most; the least says whether fractions are meant.
_NUMBERS = {
    "RETRY_BUDGET_RATIO": (0.0, 1000.0),
    "RETRY_BUDGET_FLOOR": (0, 1_000_000_000),
    "RETRY_BUDGET_WINDOW": (1, 3600),
    "OUTBOX_THREADS": (1, 200),
}
#: The values that a setting, or a view's policy of the same name, may have.
CHOICES = {
    "SCOPE": ("route", "tenant"),
    "BUSY": ("reject", "wait"),
    "FINGERPRINT": ("canonical", "raw"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """``IDEMPOTENCY`` as read once; see the README for what each one means and when to change it.

    Equal to itself alone: a request's policy is looked up by them, and the hash of all these values
    would cost it a hundredth of a small view."""

    required: bool
    methods: tuple[str, ...]
    ttl: timedelta
    lease: timedelta
    scope: str
    body_field: str | None
    busy: str
    wait: timedelta
    fingerprint: str
    fingerprint_exclude: tuple[str, ...]
    fingerprint_exclude_allowed: tuple[str, ...]
    stored_statuses: tuple[int, ...] | None
    max_response_bytes: int
    key_min_length: int
    key_uuid_only: bool
    retry_after: int
    retry_budget_ratio: float
    retry_budget_floor: int
    retry_budget_window: int
    max_deadline: timedelta
    retention: timedelta
    partition_days_ahead: int
    partition_days_alarm: int
    reclaim_grace: timedelta
    resume_attempts: int
    reconcile_after: timedelta
    reconcile_withdraw_after: timedelta
    reconcile_alert_after: timedelta
    look_up_timeout: timedelta
    #: Pairs and not a dict: nobody changes what others have read.
    four_eyes_above: tuple[tuple[str, int], ...] | None
    approve_within: timedelta
    outbox_threads: int
    outbox_retention: timedelta
    batch_size: int
    max_batches: int
    redis_url: str | None
    redis_timeout: timedelta
    problem_type_base: str | None
    store: str | None
    secret: str | bytes | None = field(repr=False)
    encryption_keys: tuple[str | bytes | None, ...] = field(repr=False)
    masked_fields: tuple[str, ...]
    check_unprotected: bool
    unprotected_allowed: tuple[str, ...]

    @property
    def secret_bytes(self) -> bytes:
        """What downstream keys are derived with. An open operation keeps the key it was prepared
        with; work that asks for one in its handler gets another when this changes."""
        secret = self.secret or django_settings.SECRET_KEY
        return secret if isinstance(secret, bytes) else str(secret).encode()


def duration(value: float | timedelta, name: str) -> timedelta:
    """Seconds or a timedelta as a timedelta; anything else is a configuration error that names the
    setting."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return timedelta(seconds=value)
    raise ImproperlyConfigured(f"{name} must be seconds or a timedelta, not {value!r}.")


def sequence(value: Iterable[Any] | None, name: str) -> tuple[Any, ...] | None:
    """Several values as a tuple, None as None. A lone string would be taken for its letters, so
    that METHODS = "POST" would protect nothing: it is a configuration error."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ImproperlyConfigured(f"{name} must be a list or a tuple, not {value!r}.")
    return tuple(value)


def choice(value: Any, name: str, known: tuple[str, ...]) -> Any:
    """The value, if it is a known one; else a configuration error that names those."""
    if value not in known:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(known)}, not {value!r}.")
    return value


def number(value: Any, name: str, least: float, most: float) -> float:
    """The value, if it is a number within the bounds, whole where ``least`` is an int; else a
    configuration error that says so."""
    kinds = (int, float) if isinstance(least, float) else int
    if isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most:
        return value
    whole = "" if isinstance(least, float) else "whole "
    raise ImproperlyConfigured(
        f"{name} must be a {whole}number from {least:g} to {most:g}, not {value!r}."
    )


def limits(value: Any, name: str) -> tuple[tuple[str, int], ...] | None:
    """Currency → amount in minor units, "*" for all others; None for no limit at all. Anything else
    is a configuration error: a limit that is misread protects nothing."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(currency, str) and type(amount) is int and amount >= 0
        for currency, amount in value.items()
    ):
        raise ImproperlyConfigured(
            f'{name} must be None or a dict of currency ("*": any other) to a whole number of '
            f"minor units, not {value!r}."
        )
    return tuple(value.items())


def secrets(value: Any, name: str) -> tuple[str | bytes | None, ...]:
    """Several secrets as a tuple. What is wrong with them is said without showing them."""
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(one, (str, bytes)) or (one is None and place == 0)
        for place, one in enumerate(value)
    ):
        raise ImproperlyConfigured(
            f"{name} must be a list of keys, the newest first; None only in the first place."
        )
    return tuple(value)


@cache
def settings() -> Settings:
    """The settings in force. Cached until Django reports that a setting changed
    (``override_settings``)."""
    given = getattr(django_settings, "IDEMPOTENCY", {})
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ImproperlyConfigured(
            f"Unknown names in IDEMPOTENCY: {', '.join(unknown)}. "
            f"Known: {', '.join(sorted(DEFAULTS))}."
        )
    merged = DEFAULTS | dict(given)
    return Settings(**{name.lower(): _read(name, value) for name, value in merged.items()})


def _read(name: str, value: Any) -> Any:
    shown = f"IDEMPOTENCY[{name!r}]"
    if name in _DURATIONS:
        return duration(value, shown)
    if name in _SEQUENCES:
        return sequence(value, shown)
    if name == "FOUR_EYES_ABOVE":
        return limits(value, shown)
    if name == "ENCRYPTION_KEYS":
        return secrets(value, shown)
    if name in _NUMBERS:
        return number(value, shown, *_NUMBERS[name])
    return choice(value, shown, CHOICES[name]) if name in CHOICES else value


@receiver(setting_changed)
def _reload(*, setting: str, **kwargs: Any) -> None:
    if setting in {"IDEMPOTENCY", "SECRET_KEY"}:
        settings.cache_clear()
