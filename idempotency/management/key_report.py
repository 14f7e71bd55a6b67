"""A key for the commands: found by what an operator has in hand, and told as its page tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.core.management.base import CommandError

from idempotency import inspection, replays, story
from idempotency.core.keys import log_digest
from idempotency.inspection import KeyFacts
from idempotency.management.report_command import NOTHING, span, utc
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.search import find_keys
from idempotency.stores import clock
from idempotency.stores.rows import opened

#: Keys that one search shows.
MOST = 20
#: Events of one key that are read, the newest.
EVENTS = 100


@dataclass(frozen=True, slots=True)
class KeyReport:
    """A key as it stood when it was read. ``key.now`` is the database's time of that moment."""

    key: Any
    facts: KeyFacts
    answer: StoredResponse | None
    chapters: list[story.Chapter]

    @property
    def title(self) -> str:
        return f"{self.key.route}  {self.key.key}  ({self.key.tenant}, record {self.key.pk})"

    @property
    def standing(self) -> str:
        """The state, and what makes it remarkable."""
        key, facts = self.key, self.facts
        words = [str(facts.state.value), f"attempt {key.attempt}"]
        if key.lease_expires_at is not None:
            over = "over for" if facts.lease_over else "left"
            words.append(f"lease {over} {span(key.lease_expires_at - key.now)}")
        if key.recovery_point:
            words.append(f"passed “{key.recovery_point}”")
        words += [word for word in ("stuck", "expired", "ended") if getattr(facts, word)]
        return ", ".join(words)


def find(term: str, using: str) -> tuple[list[KeyReport], str]:
    """The keys that a term names, the newest first, and what to add to it where that is not all."""
    keys = IdempotencyKey.objects.using(using).annotate(now=clock.now())
    found = find_keys(keys, term)
    return [_report(key, using) for key in found.keys.order_by("-pk")[:MOST]], found.advice


def find_some(term: str, using: str) -> tuple[list[KeyReport], str]:
    """The same, where finding nothing is an error."""
    reports, advice = find(term, using)
    if not reports:
        raise CommandError(f"No key is found. {advice}".strip(), returncode=NOTHING)
    return reports, advice


def _report(key: Any, using: str) -> KeyReport:
    answer = None
    if key.completed_at is not None:
        # Its day is named so that PostgreSQL looks into one partition.
        answers = StoredResponse.objects.using(using)
        answer = answers.filter(key_id=key.pk, day=key.response_day).first()
    facts = inspection.facts_of(key, key.now, answer)
    events = KeyEvent.objects.using(using).filter(key_id=key.pk).order_by("-at", "-id")
    newest = list(events[: EVENTS + 1])
    told = story.Material(
        key,
        facts,
        newest[:EVENTS],
        replays=replays.read(bytes(key.digest)),
        downstream_key=story.downstream_key_of(key),
        cut=len(newest) > EVENTS,
    )
    return KeyReport(key, facts, answer, story.story_of(told))


def lines_of(report: KeyReport) -> Iterator[str]:
    """A report for people."""
    key = report.key
    yield report.title
    yield f"  {report.standing}; digest in logs {log_digest(bytes(key.digest))}"
    yield f"  {inspection.retry_now(report.facts)}"
    if other := inspection.other_request(report.facts):
        yield f"  {other}"
    if report.answer is not None:
        yield f"  Stored response: {report.answer.status}, {_size(report.answer)}"
    yield "  Story"
    for chapter in report.chapters:
        when = utc(chapter.at) if chapter.at else "now"
        by = f" by {chapter.actor}" if chapter.actor else ""
        yield f"    {when:<23}  {chapter.title}{by}"
        if chapter.text:
            yield f"      {chapter.text}"
        yield from (f"      {label}: {value}" for label, value in chapter.details)


def _size(answer: StoredResponse) -> str:
    given = opened(answer.pk, answer.status, answer.headers, answer.body)
    return "body not kept" if given.body is None else f"{len(given.body)} bytes"


def data_of(report: KeyReport) -> dict[str, Any]:
    """A report as JSON. Bodies and contexts, which may hold personal data, are not in it."""
    key, answer = report.key, report.answer
    names = ("route", "tenant", "key", "state", "owner", "attempt", "recovery_point", "failure")
    moments = ("created_at", "lease_expires_at", "completed_at", "expires_at", "now")
    return {
        "record": key.pk,
        "digest": bytes(key.digest).hex(),
        **{name: getattr(key, name) for name in (*names, *moments)},
        "operation": inspection.operation_of(key),
        "stuck": report.facts.stuck,
        "expired": report.facts.expired,
        "retry_now": inspection.retry_now(report.facts),
        "response": answer and {"status": answer.status, "day": answer.day},
        "story": [asdict(chapter) for chapter in report.chapters],
    }
