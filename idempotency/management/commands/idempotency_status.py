from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from idempotency import overview
from idempotency.management.report_command import (
    ATTENTION,
    ReportCommand,
    size,
    span,
    table,
    utc,
)
from idempotency.overview import Overview
from idempotency.overview.requests import HOUR, all_durations, all_series, retry_share


class Command(ReportCommand):
    help = (
        "Say how the service stands, as the operations page does. Exit codes: 0 nothing needs "
        "anybody, 1 something does."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        shown = overview.read(self.alias(options))
        self.tell(options["json"], _data(shown), _lines(shown))
        if shown.attention:
            number = len(shown.attention)
            raise CommandError(f"{number} of these need somebody.", returncode=ATTENTION)


def _data(shown: Overview) -> dict[str, Any]:
    """All of the overview but the minutes, of which it has the sums."""
    data = asdict(shown) | {"traffic": None}
    if shown.traffic is not None:
        data["traffic"] = {
            "since": shown.traffic.since,
            "until": shown.traffic.until,
            "series": {
                one.name: {"hour": one.hour, "day": one.day, "peak_minute": one.peak}
                for one in all_series(shown.traffic)
            },
            "retry_share": {
                "hour": retry_share(shown.traffic, HOUR),
                "day": retry_share(shown.traffic, 24 * HOUR),
            },
            # The last bucket has no end, and JSON no infinity.
            "seconds": [asdict(one) | _ends(one) for one in all_durations(shown.traffic.day)],
        }
    for dependency in data["dependencies"]["found"]:
        for breaker in dependency["breakers"]:
            breaker["state"] = breaker["state"].value
    return data


def _ends(durations: Any) -> dict[str, float | None]:
    points = {name: getattr(durations, name) for name in ("p50", "p95", "p99")}
    return {name: None if point == float("inf") else point for name, point in points.items()}


def _lines(shown: Overview) -> Iterator[str]:
    yield f"As of {utc(shown.at)}, database {shown.using}"
    yield from (f"! {sentence}" for sentence in shown.attention)
    yield from _keys(shown)
    yield from _requests(shown)
    yield from _dependencies(shown)
    yield from _outbox(shown)
    yield from _storage(shown)


def _keys(shown: Overview) -> Iterator[str]:
    if shown.keys is None or shown.vitals is None:
        return
    yield "Keys"
    rows = []
    oldest = {
        "processing": shown.keys.oldest_processing,
        "in_doubt": shown.vitals.in_doubt.age or None,
        "abandoned": shown.vitals.abandoned.age or None,
        "suspended": shown.vitals.suspended.age or None,
    }
    for count in shown.keys.states:
        note = "estimate" if count.estimated else "or more" if count.or_more else ""
        rows.append((count.state.value, "-" if count.number is None else count.number, note))
    rows += [(name, getattr(shown.vitals, name).number, "") for name in ("abandoned", "suspended")]
    yield from table(
        (f"  {name}", number, note, _oldest(oldest.get(name))) for name, number, note in rows
    )


def _oldest(age: timedelta | None) -> str:
    return "" if age is None else f"oldest {span(age)}"


def _requests(shown: Overview) -> Iterator[str]:
    yield "Requests in the last hour, in a day, and in the busiest minute"
    if shown.traffic is None:
        yield f"  {shown.traffic_missing}"
        return
    series = all_series(shown.traffic)
    yield from table((f"  {one.name}", one.hour, one.day, one.peak) for one in series)
    shares = [retry_share(shown.traffic, minutes) for minutes in (HOUR, 24 * HOUR)]
    told = ["-" if share is None else f"{share:.1%}" for share in shares]
    yield f"  retries, at least  {told[0]} in the last hour, {told[1]} in a day"
    for one in all_durations(shown.traffic.day):
        points = f"{one.p50:g} s (p50), {one.p95:g} s (p95), {one.p99:g} s (p99)"
        yield f"  {one.outcome} took up to {points}"


def _dependencies(shown: Overview) -> Iterator[str]:
    if not (shown.dependencies.found or shown.dependencies.note):
        return
    yield "What is called"
    for dependency in shown.dependencies.found:
        breakers = ", ".join(f"{one.operation} {one.state.value}" for one in dependency.breakers)
        attempts = ""
        if dependency.attempts is not None:
            attempts = "{} first attempts and {} retries in a minute".format(*dependency.attempts)
        yield f"  {dependency.name}: {'; '.join(filter(None, (breakers, attempts)))}"
    if shown.dependencies.note:
        yield f"  {shown.dependencies.note}"


def _outbox(shown: Overview) -> Iterator[str]:
    if shown.vitals is None:
        return
    yield "Outbox"
    for name, backlog in shown.vitals.outbox.items():
        late = f", the longest due for {span(backlog.age)}" if backlog.age else ""
        yield f"  {name}: {backlog.number:,} not delivered{late}"
    yield f"  given up: {shown.vitals.dead_messages:,}"


def _storage(shown: Overview) -> Iterator[str]:
    if shown.storage is None:
        return
    yield "Tables: rows (estimated), size, of it indexes"
    yield from table(
        (f"  {one.name}", "-" if one.rows is None else one.rows, size(one.size), size(one.indexes))
        for one in shown.storage.tables
    )
