"""Whole requests, each written to the wire twice by chance: the same request has one fingerprint,
and a request that says anything else has another.

What a request says is drawn first and never read back from its bytes, so that nothing of the
product decides here what is equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, quote_plus

from django.core.handlers.wsgi import WSGIRequest
from django.test import RequestFactory
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotency.http.requests import build_policy, fingerprinter, parse_form
from tests.counts import repeats

many = settings(max_examples=repeats(20_000, 30), deadline=None)

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart"
#: Few, so that two draws often differ in one thing only.
TEXTS = ("", "1", "a", "a&b=1", "+ %2B", 'é"\\/', "e\u0301", "😀")


@dataclass(frozen=True)
class Number:
    """A JSON number as it is written: by the rules another spelling is another request."""

    literal: str


@dataclass(frozen=True)
class Said:
    """What a request says. Pairs keep their order within a name only."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    kind: str
    #: A JSON value; pairs of a form; or bytes, where the kind is a media type of its own.
    body: Any
    files: tuple[tuple[str, str, bytes], ...] = ()

    def meaning(self) -> tuple[object, ...]:
        body = self.body
        if self.kind == JSON:
            body = exact(body)
        elif self.kind in (FORM, MULTIPART):
            body = by_name(body), by_name(self.files)
        return self.method, self.path, by_name(self.query), self.kind, body


def by_name(pairs: Any) -> object:
    names = sorted({pair[0] for pair in pairs})
    return tuple((name, tuple(pair[1:] for pair in pairs if pair[0] == name)) for name in names)


def exact(value: Any) -> object:
    """A JSON value that Python compares without taking 1 for True."""
    match value:
        case dict():
            return "object", frozenset((name, exact(member)) for name, member in value.items())
        case list():
            return "array", tuple(map(exact, value))
    return type(value).__name__, value


# --- What is said --------------------------------------------------------------------------------

texts = st.sampled_from(TEXTS)
names = st.sampled_from(["a", "b", "é c"])
pairs = st.lists(st.tuples(names, texts), max_size=3).map(tuple)
numbers = st.sampled_from(["0", "-0", "1", "1.0", "1e0", "9007199254740993"]).map(Number)
scalars = st.none() | st.booleans() | texts | numbers
objects = st.fixed_dictionaries({"a": scalars, "b": scalars})
values = st.recursive(
    objects | scalars,
    lambda inner: st.lists(inner, max_size=2) | st.fixed_dictionaries({"a": inner, "b": inner}),
    max_leaves=6,
)
files = st.lists(
    st.tuples(names, st.sampled_from(["a.txt", "b.txt"]), st.sampled_from([b"x", b"y", b"\r\n"])),
    max_size=2,
).map(tuple)
methods, paths = st.sampled_from(["POST", "PATCH"]), st.sampled_from(["/a/1", "/a/2"])


def said(kind: str, body: st.SearchStrategy[Any], **more: Any) -> st.SearchStrategy[Said]:
    return st.builds(
        Said, method=methods, path=paths, query=pairs, kind=st.just(kind), body=body, **more
    )


requests = st.one_of(
    said(JSON, values),
    said(FORM, pairs),
    said(MULTIPART, pairs, files=files),
    said("text/plain", st.binary(min_size=1, max_size=8)),
)


# --- How it is written ---------------------------------------------------------------------------


class Writer:
    """Writes a request with whatever does not count drawn anew."""

    def __init__(self, draw: Any) -> None:
        self.one_of = lambda *choices: draw(st.sampled_from(choices))
        self.order = lambda items: draw(st.permutations(items))
        self.boundary = draw(st.text("abcdef0123456789", min_size=8, max_size=20))

    def request(self, it: Said) -> WSGIRequest:
        media_type, body = self.body(it)
        query = self.form(it.query)
        path = f"{it.path}?{query}" if query else it.path
        return RequestFactory().generic(it.method, path, body, media_type)

    def body(self, it: Said) -> tuple[str, bytes]:
        if it.kind == JSON:
            charset = self.one_of("", "; charset=utf-8", ";charset=UTF-8")
            return self.one_of(JSON, "Application/JSON") + charset, self.json(it.body).encode()
        if it.kind == FORM:
            return FORM, self.form(it.body).encode()
        if it.kind == MULTIPART:
            return f"multipart/form-data; boundary={self.boundary}", self.multipart(it)
        return it.kind, it.body

    def shuffled(self, pairs: Any) -> list[Any]:
        """In any order that keeps each name's values in theirs."""
        waiting = {pair[0]: [other for other in pairs if other[0] == pair[0]] for pair in pairs}
        return [waiting[pair[0]].pop(0) for pair in self.order(list(pairs))]

    def form(self, pairs: Any) -> str:
        escape = self.one_of(quote, quote_plus)
        written = [
            f"{escape(name, '')}={escape(value, '')}" for name, value in self.shuffled(pairs)
        ]
        return "&".join(written)

    def multipart(self, it: Said) -> bytes:
        parts = [(f'name="{name}"', value.encode()) for name, value in self.shuffled(it.body)]
        parts += [
            (f'name="{name}"; filename="{filename}"\r\nContent-Type: text/plain', content)
            for name, filename, content in self.shuffled(it.files)
        ]
        line = f"--{self.boundary}"
        written = b"".join(
            f"{line}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
            for head, content in parts
        )
        return written + f"{line}--\r\n".encode()

    def json(self, value: Any) -> str:
        blank = self.one_of("", " ", "\n\t")
        match value:
            case Number():
                return value.literal
            case list():
                return f"[{blank}{f'{blank},'.join(map(self.json, value))}]"
            case dict():
                members = [
                    f"{self.text(name)}{blank}:{self.json(value[name])}"
                    for name in self.order(list(value))
                ]
                return f"{{{blank}{','.join(members)}}}"
            case str():
                return self.text(value)
        return json.dumps(value)

    def text(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=self.one_of(True, False))
        return written.replace("/", self.one_of("/", "\\/"))


def fingerprint(request: WSGIRequest) -> bytes:
    """As the decorator asks for it."""
    form, _ = parse_form(request)
    body = b"" if form is not None else request.body
    return fingerprinter(request, body, form, build_policy({}))(1)


@many
@given(st.data(), requests)
def test_one_request_has_one_fingerprint_however_it_is_written(
    data: st.DataObject, it: Said
) -> None:
    first, second = (Writer(data.draw).request(it) for _ in range(2))
    assert fingerprint(first) == fingerprint(second)


@many
@given(st.data(), requests, requests)
def test_two_requests_have_one_fingerprint_only_when_they_say_the_same(
    data: st.DataObject, one: Said, other: Said
) -> None:
    alike = fingerprint(Writer(data.draw).request(one)) == fingerprint(
        Writer(data.draw).request(other)
    )
    assert alike == (one.meaning() == other.meaning())


@many
@given(st.data(), requests)
def test_whatever_else_one_part_says_changes_the_fingerprint(data: st.DataObject, it: Said) -> None:
    writer = Writer(data.draw)
    same = fingerprint(writer.request(it))
    for changed in changes(it):
        assert fingerprint(writer.request(changed)) != same, changed


def changes(it: Said) -> Iterator[Said]:
    """The same request, but for one thing in one place."""
    yield replace(it, method="PUT")
    yield replace(it, path=it.path + "0")
    yield replace(it, query=(*it.query, ("a", "new")))
    if it.kind == JSON:
        yield from (replace(it, body=body) for body in other_values(it.body))
    elif it.kind in (FORM, MULTIPART):
        yield from (replace(it, body=body) for body in other_pairs(it.body))
    if it.kind == MULTIPART:
        yield replace(it, files=(*it.files, ("a", "a.txt", b"")))
    for number, (name, filename, content) in enumerate(it.files):
        before, after = it.files[:number], it.files[number + 1 :]
        yield replace(it, files=before + after)
        for other in (
            (name + "x", filename, content),
            (name, "x" + filename, content),
            (name, filename, content + b"x"),
        ):
            yield replace(it, files=(*before, other, *after))


def other_pairs(pairs: tuple[tuple[str, str], ...]) -> Iterator[tuple[tuple[str, str], ...]]:
    yield (*pairs, ("a", "new"))
    for number, (name, value) in enumerate(pairs):
        before, after = pairs[:number], pairs[number + 1 :]
        yield before + after
        yield (*before, (name, value + "x"), *after)
        yield (*before, (name + "x", value), *after)


def other_values(value: Any) -> Iterator[Any]:
    """Values that differ in one place, or in their type only."""
    yield [value]
    match value:
        case Number():
            yield value.literal
            yield Number("7")
        case str():
            yield value + "x"
            yield None
        case bool():
            yield not value
            yield Number(str(int(value)))
        case None:
            yield "null"
        case list():
            yield [*value, None]
            yield from (
                [*value[:number], other, *value[number + 1 :]]
                for number, member in enumerate(value)
                for other in other_values(member)
            )
        case dict():
            yield value | {"new": None}
            yield from ({**value, name: x} for name in value for x in other_values(value[name]))
            yield from ({n: m for n, m in value.items() if n != name} for name in value)
