"""Fingerprints: whether two requests with one key are the same request.

A fingerprint is SHA-256 over method, concrete path, query, media type and a canonical form of the
body. Two requests that mean the same have the same one, whatever the order of JSON names, the
whitespace, the escapes or the multipart boundary; any change of a value changes it.

Rules are versioned. A stored record names the version it was made with, and a retry is compared by
that version, so an upgrade never turns an honest retry into a mismatch.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from idempotency.core.errors import BodyRefused
from idempotency.core.keys import length_prefixed

__all__ = [
    "CURRENT_VERSION",
    "MAX_JSON_DEPTH",
    "MAX_NUMBER_LENGTH",
    "SUPPORTED_VERSIONS",
    "FileFacts",
    "Form",
    "RequestFacts",
    "UnknownVersion",
    "fingerprint",
]

#: The rules that new records are made with.
CURRENT_VERSION = 1
#: Levels of arrays and objects. Far from where any supported Python's JSON scanner gives up.
MAX_JSON_DEPTH = 200
#: Characters in one JSON number. Python itself refuses to read integers above 4,300 digits.
MAX_NUMBER_LENGTH = 1000


class UnknownVersion(LookupError):
    """A stored fingerprint was made by rules that this release does not have.

    Happens when a release is rolled back while records of the newer one are alive.
    """


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One uploaded file of a multipart body; ``sha256`` is the digest of its content."""

    field: str
    filename: str
    content_type: str
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """A form or multipart body, as its parser returned it: pairs in the order they came."""

    fields: Sequence[tuple[str, str]] = ()
    files: Sequence[FileFacts] = ()


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request is recognised by.

    ``path`` is the concrete path, ``query`` the raw query string without the question mark,
    ``content_type`` the raw header value or ``""``. Where ``form`` is given it is the body, and
    ``body`` is not looked at.
    """

    method: str
    path: str
    query: str
    content_type: str
    body: bytes = field(repr=False)
    form: Form | None = field(default=None, repr=False)


def fingerprint(
    request: RequestFacts,
    *,
    version: int = CURRENT_VERSION,
    exclude: Collection[str] = (),
    raw: bool = False,
) -> bytes:
    """Return the fingerprint of a request: 32 bytes.

    ``exclude`` names members of the top-level JSON object, or form and file fields, that do not
    count: present, absent or different, the fingerprint is the same. ``raw`` takes the body's bytes
    as they are, and then ``exclude`` has no say; a parsed form has no bytes left and is compared as
    a form.

    Raises ``BodyRefused`` where two readers of the JSON could disagree on what it says, and
    ``UnknownVersion``.
    """
    try:
        compute = SUPPORTED_VERSIONS[version]
    except KeyError:
        raise UnknownVersion(f"Fingerprints of version {version} are unknown here.") from None
    return compute(request, exclude, raw)


# --- Version 1 -----------------------------------------------------------------------------------
# Released. Never edit what follows: a changed byte makes every retry across the upgrade a mismatch.
# Add a version beside it.

_DOMAIN_V1 = b"idempotency/fingerprint/1"

#: Stands before the literal text of a number. A string cannot hold a lone surrogate (it is refused
#: below), so a number and a string never look alike.
_NUMBER = "\ud800"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NESTING: Mapping[str, int] = {"[": 1, "{": 1, "]": -1, "}": -1}


def _fingerprint_v1(request: RequestFacts, exclude: Collection[str], raw: bool) -> bytes:
    media_type = _media_type(request.content_type)
    kind, body = _canonical_body(request, media_type, exclude, raw)
    message = length_prefixed(
        _DOMAIN_V1,
        _utf8(request.method),
        _utf8(request.path),
        _canonical_query(request.query),
        _utf8(media_type),
        kind,
        body,
    )
    return hashlib.sha256(message).digest()


def _canonical_body(
    request: RequestFacts, media_type: str, exclude: Collection[str], raw: bool
) -> tuple[bytes, bytes]:
    if request.form is not None:
        return b"form", _canonical_form(request.form, exclude)
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if raw or not is_json or not request.body:
        return b"bytes", request.body
    return b"json", _canonical_json(request.body, exclude)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _canonical_query(query: str) -> bytes:
    """Decode into bytes, not text: two different broken sequences stay different."""
    if not query:
        return b""
    pairs = []
    for piece in _utf8(query).replace(b"+", b" ").split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    pairs.sort(key=itemgetter(0))
    return length_prefixed(*(part for pair in pairs for part in pair))


def _canonical_form(form: Form, exclude: Collection[str]) -> bytes:
    fields = sorted((pair for pair in form.fields if pair[0] not in exclude), key=itemgetter(0))
    files = sorted((file for file in form.files if file.field not in exclude), key=_file_field)
    return length_prefixed(
        length_prefixed(*(_utf8(text) for pair in fields for text in pair)),
        length_prefixed(*(part for file in files for part in _file_parts(file))),
    )


_file_field: Callable[[FileFacts], str] = attrgetter("field")


def _file_parts(file: FileFacts) -> tuple[bytes, ...]:
    media_type = _media_type(file.content_type)
    return _utf8(file.field), _utf8(file.filename), _utf8(media_type), file.sha256


def _canonical_json(body: bytes, exclude: Collection[str]) -> bytes:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise BodyRefused("The body is not valid UTF-8. Send JSON in UTF-8.") from None
    if text.startswith("\ufeff"):
        raise BodyRefused("The body starts with a byte order mark. Send JSON without one.")
    _refuse_deep_nesting(text)
    _refuse_lone_surrogates(text)
    return _rewrite_json(text, exclude).encode("utf-8", "surrogatepass")


def _rewrite_json(text: str, exclude: Collection[str]) -> str:
    try:
        value = _DECODER.decode(text)
        if exclude and isinstance(value, dict):
            value = {name: member for name, member in value.items() if name not in exclude}
        return _ENCODER.encode(value)
    except json.JSONDecodeError as error:
        raise BodyRefused(
            f"The body is not valid JSON: line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        # The depth is bounded; the stack of the caller was nearly used up.
        raise BodyRefused("The body is nested too deeply.") from None


def _refuse_deep_nesting(text: str) -> None:
    """Count brackets outside strings before parsing: a scanner may recurse on the C stack."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for character in outside:
        depth += _NESTING.get(character, 0)
        if depth > MAX_JSON_DEPTH:
            raise BodyRefused(f"The body is nested deeper than {MAX_JSON_DEPTH} levels.")


def _refuse_lone_surrogates(text: str) -> None:
    if _SURROGATE_ESCAPE.search(text) is None:
        return
    # An escaped backslash leaves a trace: without one, halves on both sides of it would meet.
    unpaired = _SURROGATE_PAIR.sub("", text.replace("\\\\", "__"))
    if _SURROGATE_ESCAPE.search(unpaired):
        raise BodyRefused("The body holds half of a surrogate pair, which is not a character.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise BodyRefused("An object in the body has the same name twice. Send each name once.")
    return members


def _integer(literal: str) -> str:
    if len(literal) > MAX_NUMBER_LENGTH:
        raise BodyRefused(f"A number in the body has more than {MAX_NUMBER_LENGTH} characters.")
    return _NUMBER + literal


def _float(literal: str) -> str:
    number = _integer(literal)
    if math.isinf(float(literal)):
        raise BodyRefused("A number in the body is out of the range of a double.")
    return number


def _constant(_literal: str) -> NoReturn:
    raise BodyRefused("NaN and Infinity are not JSON. Send a number or null.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
)


def _utf8(text: str) -> bytes:
    # Form parsers and servers may hand on lone surrogates; they count like any other character.
    return text.encode("utf-8", "surrogatepass")


# --- End of version 1 ----------------------------------------------------------------------------

#: Version -> its rules. A version stays as long as records made with it may be alive.
SUPPORTED_VERSIONS: Mapping[int, Callable[[RequestFacts, Collection[str], bool], bytes]] = (
    MappingProxyType({1: _fingerprint_v1})
)
