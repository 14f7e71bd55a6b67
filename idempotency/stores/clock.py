"""Whose clock decides: the database's, always. Tests may freeze it, for every store at once."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import DateTimeField, DurationField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

_frozen: datetime | None = None


def frozen() -> datetime | None:
    """The frozen time, or None while the database's clock runs."""
    return _frozen


def freeze(at: datetime | None) -> None:
    """Freeze the clock of every store in this process at an aware datetime; None lets it run
    again."""
    global _frozen
    _frozen = at


def now() -> Combinable:
    """The database's present time as an expression, to be compared and written where the rows
    are."""
    if _frozen is not None:
        return Value(_frozen, output_field=DateTimeField())
    return Now()


def after(delta: timedelta) -> Combinable:
    """The database's time ``delta`` from now, or ago when it is negative."""
    return now() + Value(delta, output_field=DurationField())
