"""Retry-After: every form the RFC allows, and whatever servers send besides."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotency.client.deadline import Deadline
from idempotency.client.retry_after import LONGEST, at_least, is_well_formed, parse

#: Sun, 06 Nov 1994 08:49:37 GMT, the RFC's own example.
NOW = 784111777.0
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


def wait(value: str | None, response_date: str | None = None, now: float = NOW) -> float | None:
    return parse(value, response_date=response_date, now=now)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("2", 2.0),
        ("  120\t", 120.0),
        ("007", 7.0),
        ("0" * 5000 + "3", 3.0),
        ("3600", 3600.0),
    ],
)
def test_whole_seconds_are_read(value: str, seconds: float) -> None:
    assert wait(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 06 Nov 1994 08:50:37 GMT",
        "Sunday, 06-Nov-94 08:50:37 GMT",
        "Sun Nov  6 08:50:37 1994",
        "sun, 06 NOV 1994 08:50:37 gmt",
    ],
    ids=["IMF-fixdate", "rfc850", "asctime", "any case"],
)
def test_every_form_of_date_is_read(value: str) -> None:
    assert wait(value) == 60.0
    assert wait("60", response_date=value) == 60.0


def test_a_leap_second_is_read_as_the_one_before_it() -> None:
    assert wait("Sat, 31 Dec 2016 23:59:60 GMT", "Sat, 31 Dec 2016 23:59:50 GMT") == 9.0


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)),  # noqa: DTZ001
    st.integers(1, 10**6),
)
def test_dates_agree_with_the_standard_library(moment: datetime, later: int) -> None:
    sent = moment.replace(microsecond=0, tzinfo=UTC)
    if sent.year == 9999:
        sent = sent.replace(year=9000)
    until = sent + timedelta(seconds=later)
    dates = [format_datetime(date, usegmt=True) for date in (until, sent)]
    assert wait(dates[0], response_date=dates[1]) == later


@pytest.mark.parametrize(
    ("now", "two_digits", "year"),
    [(1994, 94, 1994), (1994, 44, 2044), (1994, 45, 1945), (2026, 76, 2076), (2026, 77, 1977),
     (1999, 5, 2005)],
)  # fmt: skip
def test_two_digits_of_a_year_are_at_most_fifty_years_ahead(
    now: int, two_digits: int, year: int
) -> None:
    reference = datetime(now, 7, 1, tzinfo=UTC).timestamp()
    date = f"Monday, 01-Jan-{two_digits:02} 00:00:00 GMT"
    ahead = datetime(year, 1, 1, tzinfo=UTC).timestamp() - reference
    assert wait(date, now=reference) == (ahead if ahead > 0 else None)


def test_the_responses_own_date_is_now() -> None:
    """Our clock may be an hour off, and so may the server's."""
    hour_later = "Sun, 06 Nov 1994 09:49:37 GMT"
    for wrong_clock in (NOW - 3600, NOW, NOW + 7200):
        assert wait(hour_later, response_date=DATE, now=wrong_clock) == 3600.0


@pytest.mark.parametrize("garbage", [None, "", "yesterday", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_our_clock_stands_in_for_a_date_that_cannot_be_read(garbage: str | None) -> None:
    assert wait("Sun, 06 Nov 1994 08:49:47 GMT", response_date=garbage) == 10.0


@pytest.mark.parametrize(
    "value",
    [
        None, "", " ", "-5", "+5", "1.5", "1e3", "1m0s", "0x10", "5, 5", "5;", "five", "nan", "inf",
        "٣", "²", "5\x00", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49:37", "1994-11-06T08:49:37Z",
        "Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET",
    ],
)  # fmt: skip
def test_garbage_and_negative_numbers_count_as_absent(value: str | None) -> None:
    assert wait(value) is None
    assert not is_well_formed(value)


@pytest.mark.parametrize(
    "value", [DATE, "Sun, 06 Nov 1994 08:49:36 GMT", "Thu Jan  1 00:00:00 1970"]
)
def test_a_date_that_has_passed_leaves_the_wait_to_the_backoff(value: str) -> None:
    assert wait(value) is None
    assert is_well_formed(value)


@pytest.mark.parametrize(
    "value", ["9" * 400, "9" * 100_000, "2147483649", "Fri, 31 Dec 9999 23:59:59 GMT"]
)
def test_enormous_waits_are_finite(value: str) -> None:
    """400 nines and the year 9999: no error, no infinity, no overflow in a sleep."""
    assert wait(value) == LONGEST


def test_an_hour_under_a_deadline_of_ten_seconds_is_too_long() -> None:
    asked = wait("3600")
    assert asked is not None
    assert not Deadline.after(10).allows(asked)


@given(st.one_of(st.none(), st.text(), st.from_regex(r"[A-Za-z]{3}[, ].*GMT")), st.text())
@example("9" * 5000, "9" * 5000)
def test_nothing_a_server_sends_raises(value: str | None, response_date: str) -> None:
    seconds = wait(value, response_date)
    assert seconds is None or 0 <= seconds <= LONGEST


def test_what_the_server_asks_for_is_a_minimum_with_a_spread_above_it() -> None:
    rng = random.Random(1)
    waits = [at_least(0.05, 2.0, spread=0.1, rng=rng) for _ in range(1000)]
    assert all(2.0 <= seconds <= 2.1 for seconds in waits)
    assert len(set(waits)) > 990


def test_a_longer_backoff_is_kept() -> None:
    assert at_least(5.0, 2.0, spread=0.1) == 5.0
    assert at_least(5.0, None, spread=0.1) == 5.0
