"""How a key's state and times look, in lists and on pages. Words first: colour only underlines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from idempotency.admin.times import about, relative, utc
from idempotency.core.states import State
from idempotency.inspection import KeyFacts
from idempotency.models import STATE_LABELS

#: State → the class that colours it.
TONES = {
    State.PROCESSING: "run",
    State.SUCCEEDED: "good",
    State.FAILED: "bad",
    State.IN_DOUBT: "doubt",
}


def badge(facts: KeyFacts) -> SafeString:
    """The state as a word, and beside it what makes the state remarkable."""
    words: list[tuple[str, Any]] = [(TONES[facts.state], STATE_LABELS[facts.state])]
    if facts.ended:
        words.append(("bad", _("ended by an operator")))
    if facts.stuck:
        words.append(("stuck", _("stuck")))
    if facts.expired:
        words.append(("quiet", _("expired")))
    return format_html_join(" ", '<span class="idem-state idem-{}">{}</span>', words)


def named(name: Any, value: Any) -> SafeString:
    """A cell that says what it is where the list has no room for columns."""
    return format_html('<span class="idem-narrow">{} </span>{}', name, value)


def stamp(text: str, at: datetime) -> SafeString:
    """``text`` as a ``<time>`` that shows the exact moment on hover."""
    iso = at.astimezone(UTC).isoformat()
    return format_html('<time datetime="{}" title="{}">{}</time>', iso, utc(at), text)


def moment(at: datetime | None, now: datetime) -> SafeString | None:
    """The exact moment, and how far it is from now."""
    if at is None:
        return None
    text = format_html('{} <span class="idem-quiet">({})</span>', utc(at), relative(at, now))
    return stamp(text, at)


def age(at: datetime, now: datetime) -> SafeString:
    """``3 min``, and the exact moment on hover."""
    return stamp(about(now - at), at)


def lease_left(at: datetime | None, now: datetime) -> SafeString | None:
    """``25 s``, or for how long the lease has been over; None without a lease."""
    if at is None:
        return None
    if at > now:
        return stamp(about(at - now), at)
    return format_html(
        '<span class="idem-over">{}</span>', stamp(_("over for %s") % about(now - at), at)
    )
