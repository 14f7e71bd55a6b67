"""``Retry-After``: how long the server asks us to wait, at the least.

Every form of RFC 9110 section 10.2.3 is read: whole seconds, and the three HTTP-dates of section
5.6.7. Nothing here raises, whatever a server sends; what cannot be read counts as absent.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from typing import Any

__all__ = ["LONGEST", "at_least", "is_well_formed", "parse"]

#: Seconds. A longer wait is cut to this one, as RFC 9111 section 1.2.2 does with long ages: still
#: longer than every deadline, and small enough for every clock.
LONGEST = float(2**31)

_SECONDS = re.compile(r"[0-9]+")
# Not calendar.month_abbr: that follows the locale.
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = "(?P<month>[a-z]{3})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_DATES = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        # Sun, 06 Nov 1994 08:49:37 GMT
        rf"[a-z]{{3}}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT",
        # Sunday, 06-Nov-94 08:49:37 GMT (RFC 850)
        rf"[a-z]{{6,9}}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        # Sun Nov  6 08:49:37 1994 (C's asctime)
        rf"[a-z]{{3}} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
]


def parse(value: str | None, *, response_date: str | None, now: float) -> float | None:
    """Return the seconds to wait at the least, from 0 to ``LONGEST``; None where nothing is asked.

    ``response_date`` is the response's own ``Date`` header: a date is taken relative to it, so that
    a wrong clock on either side does not matter. Without one, ``now`` (seconds since 1970) stands
    in. A negative number, a date that is not in the future, and garbage are None.
    """
    reference = _date(response_date, now)
    seconds = _delay(value, now if reference is None else reference)
    return None if seconds is None or seconds < 0 else min(seconds, LONGEST)


def is_well_formed(value: str | None) -> bool:
    """Whether the header says anything at all: also a date that has passed does."""
    return _delay(value, 0.0) is not None


def at_least(
    wait: float, asked: float | None, *, spread: float, rng: random.Random | None = None
) -> float:
    """Return the wait that the backoff drew, or what the server asked for when that is longer.

    ``max(wait, asked + U(0, spread))`` seconds. The spread (the backoff's base) keeps clients that
    were told the same time from returning together.
    """
    if asked is None:
        return wait
    return max(wait, asked + (rng or random.SystemRandom()).uniform(0, spread))


def _delay(value: Any, reference: float) -> float | None:
    """Seconds after ``reference``; at a date in the past, or at this very second, negative."""
    text = _text(value)
    if _SECONDS.fullmatch(text):
        # Not int() of it all: that is slow, and an error beyond 4,300 digits.
        digits = text.lstrip("0")
        return LONGEST if len(digits) > len(str(int(LONGEST))) else float(digits or 0)
    date = _date(text, reference)
    if date is None:
        return None
    return date - reference if date > reference else -1.0


def _date(value: Any, now: float) -> float | None:
    """The seconds since 1970 that an HTTP-date names."""
    matches = (pattern.fullmatch(_text(value)) for pattern in _DATES)
    fields = next((match.groupdict() for match in matches if match), None)
    if fields is None or fields["month"].lower() not in _MONTHS:
        return None
    month, day = _MONTHS.index(fields["month"].lower()) + 1, int(fields["day"])
    hour, minute, second = int(fields["hour"]), int(fields["minute"]), int(fields["second"])
    year = int(fields["year"])
    if len(fields["year"]) == 2:
        year = _full_year(year, now)
    try:
        # A leap second (60) is allowed by the grammar and unknown to datetime.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() if second <= 60 else None


def _full_year(two_digits: int, now: float) -> int:
    """RFC 9110 section 5.6.7: never more than fifty years ahead."""
    earliest = 1970 + int(now / 31_556_952) - 49
    return earliest + (two_digits - earliest) % 100


def _text(value: Any) -> str:
    return value.strip(" \t") if isinstance(value, str) else ""
