"""Canonical JSON: the same body, another body, a refused body (contract cases 22 to 24)."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from idempotency.core.errors import BodyRefused
from idempotency.core.fingerprints import (
    MAX_JSON_DEPTH,
    MAX_NUMBER_LENGTH,
    RequestFacts,
    fingerprint,
)


def of_json(
    body: bytes | str, *, content_type: str = "application/json", exclude: set[str] | None = None
) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    request = RequestFacts("POST", "/v1/charges", "", content_type, raw)
    return fingerprint(request, exclude=exclude or ())


# --- JSON: the same ------------------------------------------------------------------------------

SAME_JSON = {
    "name order": ('{"a":1,"b":{"c":2,"d":3}}', '{"b":{"d":3,"c":2},"a":1}'),
    "whitespace": ('{"a":[1,2]}', ' {\t"a" :\r\n[ 1 , 2 ] }\n'),
    "escapes": ('{"a":"é/\\n"}', '{"\\u0061":"\\u00e9\\/\\u000A"}'),
    "escaped pair": ('"😀"', '"\\ud83d\\uDE00"'),
    "last escaped pair": ('"\U0010ffff"', '"\\uDBFF\\uDFFF"'),
    "escape above the basic plane in a name": ('{"😀":1}', '{"\\uD83D\\ude00":1}'),
}


@pytest.mark.parametrize("bodies", SAME_JSON.values(), ids=SAME_JSON)
def test_json_that_means_the_same_is_the_same(bodies: tuple[str, str]) -> None:
    one, other = bodies
    assert of_json(one) == of_json(other)


@pytest.mark.parametrize("media_type", ["application/vnd.api+json", "application/problem+JSON"])
def test_structured_syntax_suffix_is_json(media_type: str) -> None:
    one = of_json('{"a":1,"b":2}', content_type=media_type)
    assert one == of_json('{"b":2, "a":1}', content_type=media_type)


json_names = st.text(max_size=6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_names, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def respelt(draw: st.DrawFn, value: object) -> str:
    """The same value, written with another name order, whitespace and escapes."""

    def blank() -> str:
        return draw(st.sampled_from(["", " ", "\n", "\t \r"]))

    def string(text: str) -> str:
        written = [json.dumps(c, ensure_ascii=draw(st.booleans()))[1:-1] for c in text]
        if written and draw(st.booleans()) and ord(text[0]) < 0x10000:
            written[0] = f"\\u{ord(text[0]):04x}"
        return '"' + "".join(written) + '"'

    def write(item: object) -> str:
        match item:
            case str():
                return string(item)
            case list():
                inner = ",".join(blank() + write(member) + blank() for member in item)
                return f"[{inner or blank()}]"
            case dict():
                members = draw(st.permutations(list(item.items())))
                inner = ",".join(
                    f"{blank()}{string(name)}{blank()}:{blank()}{write(member)}{blank()}"
                    for name, member in members
                )
                return "{" + (inner or blank()) + "}"
        return json.dumps(item)

    return blank() + write(value) + blank()


@given(st.data(), json_values)
def test_respelt_json_is_the_same(data: st.DataObject, value: object) -> None:
    one, other = data.draw(respelt(value)), data.draw(respelt(value))
    assert of_json(one) == of_json(other)


# --- JSON: not the same --------------------------------------------------------------------------

#: No two of these are the same request.
DISTINCT_JSON = [
    "", "null", "true", "false", "0", "-0", "1", "1.0", "1e0", "1E0", "10", "10.0", "1e1", "1e+1",
    "9007199254740993", "9007199254740992", "9007199254740993.0", "0.1", "0.10",
    "0.1000000000000000055511151231257827", "1e-400", "1e308",
    '""', '"0"', '"1"', '"10"', '"true"', '"null"', '"[]"', '"{}"', '"\\u0000"', '"\\\\u0000"',
    '" "', '"a"', '"A"', '"é"', '"e\u0301"', '"\u212b"', '"\u00c5"', '"\ufeff"', '"\\ufffd"',
    "[]", "[[]]", "[null]", "[{}]", "[1]", '["1"]', "[1,2]", "[2,1]", "[12]", "[1,[2]]", "[[1],2]",
    '["1,2"]', '["a","b"]', '["a,b"]', '["a\\",\\"b"]',
    "{}", '{"a":null}', '{"a":1}', '{"a":"1"}', '{"a":true}', '{"a":1.0}', '{"A":1}', '{"a":[]}',
    '{"a":[1]}', '{"a":{}}', '{"a":1,"b":2}', '{"a":2,"b":1}', '{"a":{"b":1}}', '{"b":{"a":1}}',
    '{"a":"1,\\"b\\":2"}', '{"":1}', '{"1":"a"}', '["a",1]', '[["a",1]]', '{"a":9007199254740993}',
    '{"a":9007199254740992}', '{"amount":100,"currency":"EUR"}', '{"amount":100,"currency":"USD"}',
    '{"amount":1000,"currency":"EUR"}', '{"amount":100,"currency":null}', '{"amount":100}',
]  # fmt: skip


def test_json_that_means_something_else_never_collides() -> None:
    seen: dict[bytes, str] = {}
    for body in DISTINCT_JSON:
        digest = of_json(body)
        assert digest not in seen, f"{body!r} collides with {seen[digest]!r}"
        seen[digest] = body


def exact(value: object) -> object:
    """A value as something Python compares by type and literal, so that 1, 1.0 and True differ."""
    match value:
        case dict():
            return ("object", frozenset((name, exact(member)) for name, member in value.items()))
        case list():
            return ("array", tuple(exact(member) for member in value))
        case str():
            return ("string", value)
    return ("literal", json.dumps(value))


@given(json_values, json_values)
@example(1, True)
@example(0, False)
@example(1, 1.0)
@example(1, "1")
@example(None, "null")
@example({"a": None}, {})
@example([1, 2], [12])
@example(["\\"], ["\\\\"])
def test_fingerprints_are_equal_only_for_equal_values(one: object, other: object) -> None:
    alike = of_json(json.dumps(one)) == of_json(json.dumps(other))
    assert alike == (exact(one) == exact(other))


def positions(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path]
    if isinstance(value, dict):
        for name, member in value.items():
            found += positions(member, (*path, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            found += positions(member, (*path, index))
    return found


def replaced(value, path: tuple[object, ...], new: object):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@given(st.data(), json_values, json_values)
def test_changing_any_one_value_changes_the_fingerprint(
    data: st.DataObject, value: object, new: object
) -> None:
    path = data.draw(st.sampled_from(positions(value)))
    changed = replaced(value, path, new)
    assume(exact(changed) != exact(value))
    assert of_json(json.dumps(changed)) != of_json(json.dumps(value))


@given(st.data(), st.dictionaries(json_names, json_values, min_size=1, max_size=4))
def test_removing_or_renaming_a_member_changes_the_fingerprint(
    data: st.DataObject, value: dict[str, object]
) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    without = {other: member for other, member in value.items() if other != name}
    renamed = without | {name + "x": value[name]}
    assert of_json(json.dumps(without)) != of_json(json.dumps(value))
    assert of_json(json.dumps(renamed)) != of_json(json.dumps(value))


def test_unicode_is_not_normalised() -> None:
    assert of_json('{"name":"\u00e9"}') != of_json('{"name":"e\u0301"}')


# --- JSON: refused -------------------------------------------------------------------------------

#: Each refused body; none may take long, whatever its size.
REFUSED = {
    "duplicate name": '{"a":1,"a":1}',
    "duplicate name deep down": '[{"b":{"a":1,"a":2}}]',
    "duplicate name by escape": '{"a":1,"\\u0061":2}',
    "NaN": '{"a":NaN}',
    "Infinity": "[Infinity]",
    "minus Infinity": "-Infinity",
    "above the double range": '{"a":1e400}',
    "below the double range": "-1e400",
    "above the double range without an exponent": "1" + "0" * 400 + ".0",
    "lone high surrogate": '"\\ud800"',
    "lone low surrogate": '"\\uDFFF"',
    "lone surrogate in a name": '{"\\ud83d":1}',
    "two high surrogates": '"\\ud83d\\ud83d"',
    "surrogates in the wrong order": '"\\ude00\\ud83d"',
    "pair between two halves": '"\\ud83d\\ud83d\\ude00\\ude00"',
    "halves around a backslash": '"\\ud83d\\\\\\ude00"',
    "half after an escaped backslash": '"\\\\\\ud800"',
    "half then a letter": '"\\ud83du0041"',
    "raw surrogate": b'"\xed\xa0\x80"',
    "invalid UTF-8": b'{"a":"\xff"}',
    "truncated UTF-8": b'"\xc3"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "100,000 arrays": "[" * 100_000,
    "100,000 closed arrays": "[" * 100_000 + "]" * 100_000,
    "100,000 objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "one level too many": "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1),
    "one level too many after a string": '["\\\\",' + "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    + "]",
    "one level too many, mixed": '[{"a":' * 100 + "[1]" + "}]" * 100,
    "5,000-digit integer": "1" * 5_000,
    "5,000-digit negative integer": '{"a":-' + "1" * 5_000 + "}",
    "5,000-digit fraction": "0." + "1" * 5_000,
    "one digit too many": "1" * (MAX_NUMBER_LENGTH + 1),
    "blank": " ",
    "unterminated string": '{"a":"b',
    "a million escaped quotes, unterminated": '"' + '\\"' * 500_000,
    "a million quotes": '"' * 1_000_000,
    "a million blanks": " " * 1_000_000,
    "a million minus signs": "-" * 1_000_000,
    "a million halves": '"' + "\\ud83d" * 160_000 + '"',
    "trailing comma": '{"a":1,}',
    "trailing text": '{"a":1}x',
    "two documents": "{}{}",
    "single quotes": "{'a':1}",
    "comment": "{} // x",
    "leading zero": "01",
    "leading plus": "+1",
    "bare fraction": ".5",
    "hexadecimal": "0x10",
    "control character in a string": '"\n"',
    "NUL after the document": "{}\x00",
    "bad escape": '"\\x41"',
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_ambiguous_or_broken_json_is_refused(body: bytes | str) -> None:
    with pytest.raises(BodyRefused) as caught:
        of_json(body)
    # A traceback would print the parser's error, which holds the body.
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"a":1,"a":2}', "same name twice"),
        ("NaN", "NaN"),
        ("1e400", "range of a double"),
        ("1" * 5_000, "1000 characters"),
        ("[" * 300, "deeper than 200"),
        ('"\\ud800"', "surrogate"),
        (b"\xff", "UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a":\n tru}', "line 2, column 2"),
    ],
)
def test_detail_says_what_is_wrong(body: bytes | str, detail: str) -> None:
    with pytest.raises(BodyRefused, match=detail):
        of_json(body)


@pytest.mark.parametrize(
    "body",
    [
        "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH,
        '{"a":' * MAX_JSON_DEPTH + "1" + "}" * MAX_JSON_DEPTH,
        "[" + "[]," * 10_000 + "[]]",
        '["' + "[" * 10_000 + '"]',
        '["\\"' + "[" * 10_000 + '"]',
        '["\\\\","' + "{" * 10_000 + '"]',
        "1" * MAX_NUMBER_LENGTH,
        "1e308",
        "-1.7976931348623157e308",
        '"\\\\ud800"',
        '"\\\\\\\\ud800"',
        '"\\ud83d\\ude00\\\\ud800"',
        '"\\ud7ff\\ue000"',
        '{"a":{"b":1},"b":{"a":1}}',
    ],
)
def test_unusual_but_sound_json_is_accepted(body: str) -> None:
    assert len(of_json(body)) == 32


def refused(body: bytes, **options) -> bool:
    try:
        of_json(body, **options)
    except BodyRefused:
        return True
    return False


@given(st.binary(max_size=40) | st.text(alphabet='[]{}":,\\u0123deDfab8 ', max_size=60))
def test_any_body_is_refused_or_sound_json(body: bytes | str) -> None:
    raw = body if isinstance(body, bytes) else body.encode()
    if raw and not refused(raw):
        json.loads(raw)


@given(st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\\\", "u", "\\u0041", "x"]), max_size=8))
def test_surrogates_are_refused_exactly_where_they_stand_alone(pieces: list[str]) -> None:
    body = '"' + "".join(pieces) + '"'
    text = json.loads(body)
    alone = any("\ud800" <= character <= "\udfff" for character in text)
    assert refused(body.encode()) == alone


@given(st.text(alphabet='[]{}"\\a', max_size=30))
def test_brackets_in_strings_are_not_levels(text: str) -> None:
    padding = "[]," * MAX_JSON_DEPTH
    body = f"[{padding}{json.dumps(text)},{'[' * (MAX_JSON_DEPTH - 1)}{']' * (MAX_JSON_DEPTH - 1)}]"
    assert not refused(body.encode())
    assert refused(f"[{body}]".encode())


def test_an_exhausted_stack_refuses_the_body() -> None:
    """Python 3.11 counts the scanner's recursion against the limit of Python frames."""
    body = "[" * 100 + "]" * 100
    expected = of_json(body)
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 60)
    try:
        outcome = of_json(body)
    except BodyRefused:
        outcome = None
    finally:
        sys.setrecursionlimit(limit)
    assert outcome in (None, expected)


# --- Excluded members ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["NaN", '"\\ud800"', "1e400", '{"b":1,"b":2}', "[" * 300 + "]" * 300]
)
def test_excluded_member_must_be_sound_json_too(value: str) -> None:
    assert refused(f'{{"client_token":{value}}}'.encode(), exclude={"client_token"})


@given(st.data(), st.dictionaries(json_names, json_values, max_size=4))
def test_excluding_names_equals_leaving_them_out(data: st.DataObject, value: dict) -> None:
    exclude = data.draw(st.sets(st.sampled_from([*value, "client_token"])))
    left = {name: member for name, member in value.items() if name not in exclude}
    assert of_json(json.dumps(value), exclude=exclude) == of_json(json.dumps(left))
