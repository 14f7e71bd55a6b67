"""Pages of a list, newest first, that stay right while the list grows.

A cursor names the last item seen by (created, id), so an item is never skipped or shown twice
because others were written meanwhile; and a page costs the same, however far down it is.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

_LIMIT = re.compile(r"[0-9]{1,3}")
_CURSOR = re.compile(r"[0-9A-Za-z_\-]{1,64}")
_POSITION = re.compile(r"([0-9]{1,17})\.([0-9]{1,18})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Item = TypeVar("Item", bound=Model)


@dataclass(frozen=True)
class Page:
    data: list[Any]
    #: Where the next page begins; None on the last one.
    next_cursor: str | None


def paginate(queryset: QuerySet[Item], request: Request) -> Page:
    """The page that `?limit=` and `?cursor=` ask for. Raises `ValidationError` (400)."""
    limit = _limit(request.query_params.get("limit", str(DEFAULT_LIMIT)))
    if "cursor" in request.query_params:
        created, pk = _decode(request.query_params["cursor"])
        # The first condition repeats the second's outline in a form that the index can use.
        queryset = queryset.filter(
            Q(created__lte=created) & (Q(created__lt=created) | Q(pk__lt=pk))
        )
    found = list(queryset.order_by("-created", "-pk")[: limit + 1])
    items = found[:limit]
    return Page(items, _encode(items[-1]) if len(found) > limit else None)


def _limit(value: str) -> int:
    if _LIMIT.fullmatch(value) and 1 <= int(value) <= MAX_LIMIT:
        return int(value)
    raise ValidationError({"limit": [f"Expected a whole number from 1 to {MAX_LIMIT}."]})


def _encode(item: Any) -> str:
    position = f"{(item.created - _EPOCH) // _MICROSECOND}.{item.pk}"
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[datetime, int]:
    try:
        if not _CURSOR.fullmatch(cursor):
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        position = _POSITION.fullmatch(base64.urlsafe_b64decode(padded).decode())
        if position is None:
            raise ValueError
        return _EPOCH + int(position[1]) * _MICROSECOND, int(position[2])
    except (ValueError, binascii.Error, OverflowError):
        raise ValidationError({"cursor": ["This was not given by an earlier page."]}) from None
