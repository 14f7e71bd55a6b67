"""Request bodies, read so strictly that whatever passes can be stored and compared."""

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from django.utils.http import parse_header_parameters
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, DataAndFiles, MultiPartParser

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


class StrictMultiPartParser(MultiPartParser):
    """Multipart in which something was found, unless there is nothing in it.

    Django's parser passes over what it cannot read. A body of which nothing is left would mean "no
    field was sent", and that has a meaning of its own: refund the whole charge.
    """

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> "DataAndFiles[Any, Any]":
        parsed = super().parse(stream, media_type, parser_context)
        meta = (parser_context or {})["request"].META
        _, options = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        # The shortest body is the closing delimiter alone: two hyphens at each end, and CRLF.
        shortest = len(options.get("boundary", "")) + 6
        if not parsed.data and not parsed.files and int(meta["CONTENT_LENGTH"]) > shortest:
            raise ParseError("The multipart body cannot be read: no field was found in it.")
        return parsed


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
