"""Requests and responses, as far as retries are concerned with them.

A request holds its whole body as bytes, so every attempt sends the same ones. A file is read once,
before the first attempt; what can be read only once and has no length, such as a generator, is
refused there. (A file that is sent again from where the first attempt left it is sent empty, and
servers say 200 to that.)
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, TypeVar

from idempotency.core.keys import parse_body_field, parse_header

__all__ = ["BodyNotRepeatable", "Content", "Request", "Response", "new_key", "read_body"]

#: Tells the server which attempt this is: ``X-Retry-Attempt: 2; max=3``.
MARKER = "x-retry-attempt"

#: What ``read_body`` takes.
Content = bytes | bytearray | memoryview | str | BinaryIO

_NEEDS_QUOTES = re.compile(r'["\\,;]')
_ESCAPED = re.compile(r'(["\\])')


class BodyNotRepeatable(TypeError):
    """This body cannot be sent a second time as it was sent the first time. Nothing was sent."""


class Response(Protocol):
    """What a transport returns: an answer that has been read to its end.

    No connection belongs to it any more, so none is held while the caller waits for the next
    attempt. Responses of httpx2, httpx and requests look like this.
    """

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...


AnyResponse = TypeVar("AnyResponse", bound=Response)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Its ``repr`` shows neither headers nor body: both hold secrets."""

    method: str
    #: Absolute.
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise BodyNotRepeatable("the body of a request is bytes; read_body() makes them")


def read_body(content: Content) -> bytes:
    """The bytes of a body: those given, text as UTF-8, or the rest of a seekable binary file.

    The file stays where it was, so that a second call sends the same. It is read into memory.
    Raises ``BodyNotRepeatable`` for generators, pipes, text files and everything else.
    """
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    if not (hasattr(content, "seekable") and content.seekable()):
        kind = type(content).__name__
        raise BodyNotRepeatable(f"a {kind} can be read only once; pass bytes or a seekable file")
    position = content.tell()
    data = content.read()
    content.seek(position)
    if not isinstance(data, bytes):
        raise BodyNotRepeatable("the file is open as text; open it in binary mode")
    return data


def new_key() -> str:
    """A key for one intent: a random UUID. Keep it where it outlives the process, if that can end
    before the answer has come."""
    return str(uuid.uuid4())


def spell_key(key: str) -> str:
    """The value of an ``Idempotency-Key`` header: bare, as most vendors document it, or quoted
    where a structured field (RFC 9651) needs it. Raises ``KeyInvalid``."""
    parse_body_field(key)
    return f'"{_ESCAPED.sub(_BACKSLASHED, key)}"' if _NEEDS_QUOTES.search(key) else key


_BACKSLASHED = r"\\\1"


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with names in lower case, so that one name cannot be there twice."""
    return {name.lower(): value for name, value in headers.items()}


def find_key(headers: Mapping[str, str], key: str | None) -> str | None:
    """The spelling of the key that was given, as an argument or in the (lower-case) headers.

    Raises ``KeyInvalid`` for what is no key, and ``ValueError`` for two different ones.
    """
    spelt = headers.get("idempotency-key")
    if spelt is None:
        return None if key is None else spell_key(key)
    found = parse_header(spelt)
    if key not in (None, found):
        raise ValueError("two different idempotency keys: in the headers and as an argument")
    return spelt
