"""Request bodies, read so strictly that whatever passes can be stored and compared."""

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from django.utils.http import parse_header_parameters
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, DataAndFiles, FormParser, MultiPartParser

#: Arrays and objects within each other.
MAX_DEPTH = 64
#: Of an integer; a double has 309 at most.
MAX_DIGITS = 309


class StrictJSONParser(BaseParser):
    """JSON as RFC 8259 means it: UTF-8, no NaN, no name twice, no half surrogate pairs.

    Numbers too large for a double and NUL characters are refused too: PostgreSQL's `jsonb` would.
    """

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return loads(stream.read())


class StrictFormParser(FormParser):
    """A form that has a field. One of ``&&&`` would mean that no field was sent, and that has a
    meaning of its own: refund the whole charge."""

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        parsed = super().parse(stream, media_type, parser_context)
        if not parsed:
            raise ParseError("The form cannot be read: no field was found in it.")
        return parsed


class StrictMultiPartParser(MultiPartParser):
    """Multipart that came to its end, and in which something was found unless nothing is in it.

    Django's parser passes over what it cannot read, and takes a body that breaks off for one that
    ends: an amount of 199900, cut short, would be 19. A body of which nothing is left would mean
    "no field was sent".
    """

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> "DataAndFiles[Any, Any]":
        meta = (parser_context or {})["request"].META
        _, options = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        # RFC 2046 section 5.1.1: two hyphens at each end of the last delimiter.
        closing = f"--{options.get('boundary', '')}--".encode("latin-1", "replace")
        body = _Ending(stream, len(closing) + 2)
        parsed = super().parse(body, media_type, parser_context)
        if not body.end.removesuffix(b"\r\n").endswith(closing):
            raise ParseError("The multipart body breaks off: its closing boundary is missing.")
        if not parsed.data and not parsed.files and int(meta["CONTENT_LENGTH"]) > len(closing) + 2:
            raise ParseError("The multipart body cannot be read: no field was found in it.")
        return parsed


class _Ending:
    """A stream that remembers the last bytes that were read of it."""

    def __init__(self, stream: IO[bytes], length: int) -> None:
        self._stream, self._length = stream, length
        self.end = b""

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.end = (self.end + data)[-self._length :]
        return data


def loads(text: bytes | str) -> Any:
    """The value of a JSON text. Raises `ParseError`, and nothing else."""
    try:
        if isinstance(text, bytes):
            text = _decode(text)
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
        _check(value, MAX_DEPTH)
    except RecursionError:
        raise ParseError(f"The JSON is nested more than {MAX_DEPTH} levels deep.") from None
    except ValueError as error:
        raise ParseError(f"The JSON cannot be read: {error}.") from None
    return value


def _decode(text: bytes) -> str:
    # RFC 8259 section 8.1: UTF-8, whatever a charset parameter says.
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return result


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _integer(literal: str) -> int:
    if len(literal) > MAX_DIGITS:
        raise ValueError("a number is out of range")
    return int(literal)


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict | list):
        if not depth:
            raise RecursionError
        if isinstance(value, dict):
            for name in value:
                _check_text(name)
        for member in value.values() if isinstance(value, dict) else value:
            _check(member, depth - 1)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair") from None
