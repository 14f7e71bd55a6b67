"""What a client says of its own retries: ``X-Retry-Attempt: 2; max=3``."""

from __future__ import annotations

import re

from django.http import HttpRequest

HEADER = "X-Retry-Attempt"
_IN_META = f"HTTP_{HEADER.upper().replace('-', '_')}"

#: An integer item of RFC 9651, whose parameters do not matter here.
_ATTEMPT = re.compile(r"[ \t]*0*([1-9][0-9]*)[ \t]*(?:;.*)?", re.DOTALL)


def is_marked_retry(request: HttpRequest) -> bool:
    """Whether a request says that it is attempt 2 or later. What cannot be read says nothing.

    Two header lines, which servers join with a comma, cannot be read either.
    """
    match = _ATTEMPT.fullmatch(request.META.get(_IN_META, ""))
    return match is not None and match[1] != "1"
