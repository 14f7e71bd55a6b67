"""Entity tags and the conditions on them (RFC 9110 sections 8.8.3 and 13.1)."""

import re

from rest_framework.request import Request

from payments.exceptions import PreconditionFailed, PreconditionRequired
from payments.models import Charge

_ELEMENT = re.compile(r'[ \t,]*(W/)?("[\x21\x23-\x7E\x80-\xFF]*")(?=[ \t]*(?:,|$))')


def etag(charge: Charge) -> str:
    """A strong tag: equal versions have equal bytes."""
    return f'"{charge.version}"'


def if_match(request: Request) -> str:
    """The condition of a change. Raises `PreconditionRequired` when there is none."""
    header: str = request.headers.get("If-Match", "").strip()
    if not header:
        raise PreconditionRequired("Send If-Match with the ETag of the version to change.")
    return header


def check(condition: str, current: str) -> None:
    """Let a change pass only if it names the present version, or any (`*`).

    Call it under a lock on the resource. Raises `PreconditionFailed`.
    """
    # Strong comparison: a weak tag matches nothing.
    if condition != "*" and (None, current) not in _tags(condition):
        raise PreconditionFailed(f"If-Match does not name the present version, {current}.")


def not_modified(request: Request, current: str) -> bool:
    """Whether `If-None-Match` says that the caller has this version already."""
    header = request.headers.get("If-None-Match", "").strip()
    # Weak comparison: the prefix does not count.
    return header == "*" or any(tag == current for _, tag in _tags(header))


def _tags(header: str) -> list[tuple[str | None, str]]:
    """Each listed tag with its weakness mark. A header that is not such a list matches nothing."""
    tags, position = [], 0
    while match := _ELEMENT.match(header, position):
        tags.append((match[1], match[2]))
        position = match.end()
    return [] if header[position:].strip(" \t,") else tags
