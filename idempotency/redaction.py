"""What no log may show, in one place.

This library's own log lines name a key by its digest. Lines of others may quote it all the same: a
path that holds it, an error of the database that shows a row. ``redactor()`` makes the function
for the end of a logging pipeline; ``request_id_middleware`` says what to hide for each request.

So is what ``masking`` hides elsewhere, where a line names it: ``"password": "…"``, ``token=…``.

A value is hidden where it stands in a line as it was sent. Values shorter than ``SHORTEST`` are
not looked for: hiding every ``1`` would leave no log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar

from idempotency.masking import HIDDEN, mask

__all__ = ["HIDDEN", "SHORTEST", "begin", "end", "hide", "redactor"]

SHORTEST = 6

#: Where secrets stand in other people's lines. What matches the group stays.
_SHAPES = (
    # The address at which a caller finds what became of its key.
    r"(idempotency-keys/)[^\s\"'?>]+",
    # The admin's search, and a question to the other side about a call.
    r"([?&](?:q|key)=)[^&\s\"'>]+",
    r"((?i:idempotency-key)[\"']?: *)[\x21-\x7e]+",
    r"((?i:bearer) +)[\x21-\x7e]+",
    # PostgreSQL shows the row that breaks a rule.
    r"(DETAIL: +).+",
)

#: A line without any of these has none of those shapes, and no pair: most fields of a log line.
_MARK = re.compile("[=:/ ]")

#: A name and its value as JSON, Python or a query string write them: ``"pin": "1"``, ``pin='1'``.
#: Bounded, and from the beginning of a word on: a long line takes no longer than it is.
_PAIR = re.compile(
    r"""(?P<quote>\\{0,4}["'])?(?<![\w.-])(?P<name>[A-Za-z][\w.-]{0,63})"""
    r"""(?(quote)(?P=quote)\s{0,8}[:=]|=)\s{0,8}"""
    r"""(?P<value>\\{0,4}"[^"]*"|\\{0,4}'[^']*'|[^\s"',;&{}\[\]()]+)"""
)

_hidden: ContextVar[set[str] | None] = ContextVar("idempotency_hidden", default=None)


def begin() -> None:
    """A request begins: forget what the one before it brought, and hide what ``hide`` is told."""
    _hidden.set(set())


def end() -> None:
    """It has ended, with the last line that its server writes about it."""
    _hidden.set(None)


def hide(*values: str) -> None:
    """Keep these out of every line that this request logs from now on. Outside a request it does
    nothing."""
    hidden = _hidden.get()
    if hidden is not None:
        hidden.update(value for value in values if len(value) >= SHORTEST)


def redactor(*shapes: str) -> Callable[[str], str]:
    """A function that takes secrets out of a line.

    ``shapes``: regular expressions of what else is secret; with a group, what matches it stays.
    """
    common, special = ([re.compile(shape) for shape in each] for each in (_SHAPES, shapes))

    def redact(line: str) -> str:
        for value in sorted(_hidden.get() or (), key=len, reverse=True):
            line = line.replace(value, HIDDEN)
        line = _without(special, line)
        return _PAIR.sub(_pair, _without(common, line)) if _MARK.search(line) else line

    return redact


def _without(patterns: list[re.Pattern[str]], line: str) -> str:
    for pattern in patterns:
        if pattern.search(line):  # a third of what sub costs where there is nothing
            line = pattern.sub(r"\g<1>" + HIDDEN if pattern.groups else HIDDEN, line)
    return line


def _pair(found: re.Match[str]) -> str:
    """A name and its value, without the value where the name is one that is masked everywhere."""
    if not mask().hides(found["name"]):
        return found[0]
    return found[0][: found.start("value") - found.start()] + HIDDEN
