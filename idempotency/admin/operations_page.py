"""What the operations page shows, made of an overview: labels, numbers as texts, charts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from idempotency.admin.cells import TONES, stamp
from idempotency.admin.operations_charts import HEIGHT, WIDTH, Bar, averages, columns, outline
from idempotency.admin.times import about, relative, span, utc
from idempotency.client.breaker import State as BreakerState
from idempotency.models import STATE_LABELS
from idempotency.observability.vitals import MOST, Backlog
from idempotency.overview.facts import Day, Dependencies, Keys, Overview, StateCount, Storage
from idempotency.overview.requests import HOUR, Durations, all_durations, all_series, retry_share
from idempotency.traffic import Traffic

#: Minutes that one bar of a chart of requests stands for.
SMOOTHED = 10
#: Dependencies that are listed; those that are not calm come first.
SHOWN_DEPENDENCIES = 100

BREAKER_TONES = {
    BreakerState.CLOSED: "good",
    BreakerState.HALF_OPEN: "doubt",
    BreakerState.OPEN: "bad",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture and its words."""

    name: str
    label: str | Promise
    summary: str
    #: What the highest bar stands for.
    top: str
    path: str = ""
    bars: list[Bar] = field(default_factory=list)


def page_of(shown: Overview) -> dict[str, Any]:
    """The context of the template."""
    return {
        "shown": shown,
        "as_of": stamp(utc(shown.at), shown.at),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "keys": shown.keys and _keys(shown.keys),
        "backlogs": _backlogs(shown),
        "requests": shown.traffic and _requests(shown.traffic),
        "durations": shown.traffic and _durations(shown.traffic),
        "dependencies": _dependencies(shown.dependencies),
        "outbox": _outbox(shown),
        "partitions": shown.storage and _partitions(shown, shown.storage),
        "tables": shown.storage and _tables(shown.storage),
        "queries": [
            (_milliseconds(one.seconds), " ".join(one.sql.split())) for one in shown.queries
        ],
        "queries_took": _milliseconds(sum(one.seconds for one in shown.queries)),
    }


def number(value: float) -> str:
    """Grouped as the viewer's language has it."""
    return str(number_format(value, decimal_pos=None, use_l10n=True, force_grouping=True))


def _milliseconds(seconds: float) -> str:
    return _("%s ms") % number_format(seconds * 1000, decimal_pos=1)


# Keys


def _keys(keys: Keys) -> dict[str, Any]:
    return {
        "states": [
            (TONES[count.state], STATE_LABELS[count.state], count.state.value, *_count(count))
            for count in keys.states
        ],
        "oldest": None if keys.oldest_processing is None else span(keys.oldest_processing),
    }


def _count(count: StateCount) -> tuple[str, str]:
    if count.number is None:
        return "-", _("no estimate")
    if count.estimated:
        return number(count.number), _("estimate")
    return number(count.number), _("or more") if count.or_more else ""


def _backlogs(shown: Overview) -> list[tuple[str, str, str]]:
    """Label, number and age of what is open."""
    if shown.vitals is None:
        return []
    backlogs = [
        (_("Abandoned: the lease is over, and its owner said nothing"), shown.vitals.abandoned),
        (_("Operations without an outcome, left to the job"), shown.vitals.suspended),
        (_("In doubt: waiting for a decision"), shown.vitals.in_doubt),
    ]
    return [(label, _number(backlog), _age(backlog)) for label, backlog in backlogs]


def _number(backlog: Backlog) -> str:
    text = number(backlog.number)
    return _("%s or more") % text if backlog.number >= MOST else text


def _age(backlog: Backlog) -> str:
    return span(backlog.age) if backlog.age else "-"


# Requests


def _requests(traffic: Traffic) -> dict[str, Any]:
    series = all_series(traffic)
    hours = zip(*(one.hours for one in series), strict=True)
    return {
        "charts": [
            Chart(
                name=one.name,
                label=one.label,
                summary=_("%(hour)s in the last hour, %(day)s in a day")
                % {"hour": number(one.hour), "day": number(one.day)},
                top=_top(averages(one.minutes, SMOOTHED)),
                path=outline(averages(one.minutes, SMOOTHED)),
            )
            for one in series
        ],
        "labels": [one.label for one in series],
        "hours": [
            (_hour(traffic.until, 24 - index), list(map(number, values)))
            for index, values in enumerate(hours)
        ][::-1],
        "retries": [_share(retry_share(traffic, HOUR)), _share(retry_share(traffic, 24 * HOUR))],
        "since": _since(traffic),
    }


def _top(values: list[float]) -> str:
    """What the highest bar stands for; empty where there is none."""
    most = max(values)
    text = number_format(most, decimal_pos=0 if most >= 10 else 1, force_grouping=True)
    return _("at most %s a minute") % text if most else ""


def _hour(until: datetime, ago: int) -> str:
    begin = until - timedelta(hours=ago)
    return f"{begin:%H:%M} - {begin + timedelta(hours=1):%H:%M}"


def _share(share: float | None) -> str:
    return "-" if share is None else _("%s %%") % number_format(100 * share, decimal_pos=1)


def _since(traffic: Traffic) -> str:
    """Empty where a whole day was counted, but for a quiet minute at its begin."""
    if traffic.since is None:
        return _("Nothing was counted in the last day.")
    if traffic.until - traffic.since >= timedelta(hours=23, minutes=50):
        return ""
    return _("Counted since %s.") % utc(traffic.since)


def _durations(traffic: Traffic) -> dict[str, Any]:
    bounds = sorted({bound for buckets in traffic.day.values() for bound in buckets})
    last = max((bound for bound in bounds if not math.isinf(bound)), default=0.0)
    return {
        "spans": [
            (_("Last hour"), [_row(one, last) for one in all_durations(traffic.hour)]),
            (_("Last day"), [_row(one, last) for one in all_durations(traffic.day)]),
        ],
        "executed": _distribution(traffic.day.get("executed", {}), last),
    }


def _row(durations: Durations, last: float) -> tuple[str, ...]:
    points = (durations.p50, durations.p95, durations.p99)
    return durations.outcome, number(durations.number), *(_within(point, last) for point in points)


def _within(bound: float, last: float) -> str:
    return _("over %s") % _seconds(last) if math.isinf(bound) else _("≤ %s") % _seconds(bound)


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return _("%s ms") % f"{seconds * 1000:g}"
    return _("%s s") % f"{seconds:g}"


def _distribution(buckets: dict[float, int], last: float) -> list[tuple[str, str, float]]:
    """Bound, number, and the length of its bar in hundredths."""
    most = max(buckets.values(), default=0)
    return [
        (_within(bound, last), number(count), round(100 * count / most, 1) if most else 0.0)
        for bound, count in sorted(buckets.items())
    ]


# What is called, and what is sent


def _dependencies(dependencies: Dependencies) -> dict[str, Any]:
    rows = [
        (
            dependency.name,
            [
                (one.operation, BREAKER_TONES[one.state], _breaker(one.state, one.opens_for))
                for one in dependency.breakers
            ],
            dependency.attempts and list(map(number, dependency.attempts)),
        )
        for dependency in dependencies.found
    ]
    return {
        "rows": rows[:SHOWN_DEPENDENCIES],
        "more": max(0, len(rows) - SHOWN_DEPENDENCIES),
        "note": dependencies.note,
    }


def _breaker(state: BreakerState, opens_for: float | None) -> str:
    if state is BreakerState.CLOSED:
        return _("closed")
    if state is BreakerState.HALF_OPEN:
        return _("half open: probing")
    if opens_for is None:
        return _("open")
    if not opens_for:
        return _("open: the next call probes")
    return _("open: probes in %s") % about(timedelta(seconds=math.ceil(opens_for)))


def _outbox(shown: Overview) -> dict[str, Any] | None:
    if shown.vitals is None:
        return None
    channels = shown.vitals.outbox.items()
    return {
        "rows": [(name, _number(backlog), _age(backlog)) for name, backlog in channels],
        "dead": _number(Backlog(shown.vitals.dead_messages)),
    }


# Storage


def _partitions(shown: Overview, storage: Storage) -> dict[str, Any] | None:
    if not storage.days:
        return None
    largest = max(storage.days, key=lambda day: day.size)
    texts = [f"{one.day}: {filesizeformat(one.size)}" for one in storage.days]
    return {
        "ahead": None if shown.vitals is None else _days(shown.vitals.days_ahead or 0),
        "next_drop": storage.next_drop and _drop(*storage.next_drop, shown.at),
        "chart": Chart(
            name="partitions",
            label=_("Bytes by day"),
            summary=_days(len(storage.days)),
            top=_("at most %s") % filesizeformat(largest.size),
            bars=columns([one.size for one in storage.days], texts),
        ),
        "first": storage.days[0].day,
        "last": storage.days[-1].day,
        "rows": [_day(one) for one in reversed(storage.days)],
    }


def _days(days: int) -> str:
    return ngettext("%d day", "%d days", days) % days


def _drop(day: Any, when: datetime, now: datetime) -> str:
    values = {"day": day, "when": utc(when), "relative": relative(when, now)}
    return _("%(day)s, from %(when)s on (%(relative)s), once no live key needs it") % values


def _day(day: Day) -> tuple[Any, str, str, str]:
    note = "" if day.attached else _("detached")
    return day.day, number(day.rows), filesizeformat(day.size), note


def _tables(storage: Storage) -> list[tuple[str, str, str, str]]:
    return [
        (
            table.name,
            "-" if table.rows is None else number(table.rows),
            filesizeformat(table.size),
            filesizeformat(table.indexes),
        )
        for table in storage.tables
    ]
