"""A stored answer as it can be shown: never as HTML, no body unasked, and never what is masked."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _

from idempotency import encryption
from idempotency.core.responses import RecordedResponse
from idempotency.encryption import Unreadable, open_json
from idempotency.masking import mask
from idempotency.models import StoredResponse

#: Bytes of a body that are shown; a page is to be read, not to carry a megabyte.
SHOWN_BYTES = 64 * 1024
#: Bytes of a binary body that are shown.
SHOWN_BINARY = 256
#: Deeper JSON is shown as it is: indented, its size grows with the square of its depth.
DEEPEST = 24

# A string, a bracket or a comma with the blanks after it, a colon, or anything else in one run.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s"\[\]{},:]+')
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_STEP = dict.fromkeys(_OPENING, 1) | dict.fromkeys(_CLOSING, -1)
# Control characters, and those that change the direction or the look of the text around them.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


@dataclass(frozen=True, slots=True)
class ShownHeader:
    name: str
    #: None: hidden.
    value: str | None


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """What the page shows. ``text`` None: there is nothing to show, and ``note`` says why."""

    status: str
    headers: list[ShownHeader]
    size: str
    text: str | None
    note: str


def show_answer(answer: StoredResponse, *, may_see_body: bool) -> ShownAnswer:
    """Prepare an answer for a viewer who may or may not see bodies."""
    given, problem = _opened(answer)
    headers = [ShownHeader(str(name), _header_value(name, value)) for name, value in given.headers]
    media_type = next((h.value or "" for h in headers if h.name.lower() == "content-type"), "")
    body = given.body
    text, note = _body(body, media_type.split(";")[0].strip().lower(), may_see_body)
    return ShownAnswer(
        status=_status(given.status),
        headers=headers,
        size="" if body is None else filesizeformat(len(body)),
        text=text,
        note=problem or note,
    )


def _opened(answer: StoredResponse) -> tuple[RecordedResponse, str]:
    """The answer as it was given, and why its body cannot be read."""
    body = None if answer.body is None else bytes(answer.body)
    stored = RecordedResponse(answer.status, tuple((n, v) for n, v in answer.headers), body)
    try:
        return encryption.unseal(stored), ""
    except Unreadable as error:
        return encryption.bare(stored), _("It cannot be read. %s") % error


def show_json(value: Any) -> str:
    """What a message carries, or an operation keeps for its next step: opened, indented, masked and
    harmless to look at."""
    try:
        value = open_json(value)
        if isinstance(value, dict) and "context" in value:
            value = {**value, "context": open_json(value["context"])}
    except Unreadable as error:
        return _("It cannot be read. %s") % error
    return _visible(mask().text(json.dumps(value, indent=2, ensure_ascii=False)))


def _status(status: int) -> str:
    phrases = {known.value: known.phrase for known in HTTPStatus}
    return f"{status} {phrases.get(status, '')}".strip()


def _header_value(name: object, value: object) -> str | None:
    return None if mask().hides(str(name)) else _visible(str(value))


def _body(body: bytes | None, media_type: str, may_see: bool) -> tuple[str | None, str]:
    if body is None:
        return None, _("The body is not kept: it was too large, streamed or erased.")
    if not body:
        return None, _("The answer has no body.")
    if not may_see:
        return None, _(
            "Hidden: seeing bodies needs the permission “Can see stored response bodies”."
        )
    note = ""
    if len(body) > SHOWN_BYTES:
        note = _("Only the first %s are shown.") % filesizeformat(SHOWN_BYTES)
    text = _text(body[:SHOWN_BYTES], whole=len(body) <= SHOWN_BYTES)
    if text is None:
        return _hex(body), _("Not text: the first %d bytes at most are shown.") % SHOWN_BINARY
    text = mask().text(text)
    if media_type.endswith("json") and not note:
        text = pretty_json(text)
    return _visible(text), note


def _text(body: bytes, *, whole: bool) -> str | None:
    """The body as text, None where it is none. A cut may have split a character: it is left out."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if whole or error.end < len(body) - 3:
            return None
        text = body[: error.start].decode()
    return None if "\x00" in text else text


def _hex(body: bytes) -> str:
    """Sixteen bytes a line: offset, hexadecimal, and the printable ones."""
    lines = []
    for offset in range(0, min(len(body), SHOWN_BINARY), 16):
        piece = body[offset : min(offset + 16, SHOWN_BINARY)]
        printable = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)
        lines.append(f"{offset:08x}  {piece.hex(' '):<47}  {printable}")
    return "\n".join(lines)


def _visible(text: str) -> str:
    r"""Spell out what cannot be seen, so that a body cannot look like another one: ``\u202e``."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def pretty_json(text: str) -> str:
    """Indent JSON without reading it: every number, name and escape stays as it was stored.

    Through ``json.loads`` a repeated name would vanish and 1.10 become 1.1: what an operator
    compares with a client's log has to be the bytes. Anything that is not JSON comes back as it is.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    tokens = _JSON_TOKEN.findall(text)
    depths = list(accumulate(_STEP.get(token, 0) for token in tokens))
    if max(depths, default=0) > DEEPEST:
        return text
    return "".join(map(_indented, tokens, depths, ["", *tokens], [*tokens[1:], ""]))


def _indented(token: str, depth: int, before: str, after: str) -> str:
    """A token with the blanks that belong to it, at the depth that holds behind it."""
    line = "\n" + "  " * depth
    if token in _OPENING:
        return token if after in _CLOSING else token + line
    if token in _CLOSING:
        return token if before in _OPENING else line + token
    return {",": "," + line, ":": ": "}.get(token, token)
