"""Pages of a list, newest first, that stay right while the list grows.

A cursor names the last item seen by (created, id), so an item is never skipped or shown twice
because others were written meanwhile; and a page costs the same, however far down it is.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

#: 16 hexadecimal digits of microseconds since 1970, up to the year 4253, and 16 of a row's number.
#: Whatever matches is a place in the list, so the OpenAPI document says all there is to say.
CURSOR = re.compile(r"\A00[0-9a-f]{14}[0-7][0-9a-f]{15}\Z")

_LIMIT = re.compile(r"[0-9]{1,3}")
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
    return f"{(item.created - _EPOCH) // _MICROSECOND:016x}{item.pk:016x}"


def _decode(cursor: str) -> tuple[datetime, int]:
    if not CURSOR.match(cursor):
        raise ValidationError({"cursor": ["This was not given by an earlier page."]})
    return _EPOCH + int(cursor[:16], 16) * _MICROSECOND, int(cursor[16:], 16)
