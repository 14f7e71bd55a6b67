"""Which requests are the same request (contract cases 18, 19, 22 to 26 and 28)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotency.core import fingerprints
from idempotency.core.fingerprints import (
    FileFacts,
    Form,
    RequestFacts,
    UnknownVersion,
    fingerprint,
)

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=aaa"


def facts(
    body: bytes | str = b"",
    *,
    method: str = "POST",
    path: str = "/v1/charges",
    query: str = "",
    content_type: str = "application/json",
    form: Form | None = None,
) -> RequestFacts:
    raw = body.encode() if isinstance(body, str) else body
    return RequestFacts(method, path, query, content_type, raw, form)


def of_json(body: bytes | str, **options) -> bytes:
    return fingerprint(facts(body), **options)


def of_form(*fields: tuple[str, str], files=(), content_type: str = FORM, **options) -> bytes:
    return fingerprint(facts(content_type=content_type, form=Form(fields, files)), **options)


def upload(content: bytes = b"x", **changes) -> FileFacts:
    values = {"field": "file", "filename": "a.pdf", "content_type": "application/pdf"} | changes
    return FileFacts(**values, sha256=hashlib.sha256(content).digest())


# --- Everything around the body ------------------------------------------------------------------


def test_fingerprint_is_32_bytes_and_repeatable() -> None:
    assert of_json('{"a":1}') == of_json('{"a":1}')
    assert len(of_json('{"a":1}')) == 32


def test_method_path_query_media_type_and_body_each_count() -> None:
    requests = [
        facts("{}"),
        facts("{}", method="PATCH"),
        facts("{}", path="/v1/transfers"),
        facts("{}", query="a=1"),
        facts("{}", content_type="application/vnd.api+json"),
        facts("[]"),
        facts("{}", content_type="text/plain"),
    ]
    assert len({fingerprint(request) for request in requests}) == len(requests)


def test_concrete_path_counts() -> None:
    one = facts("{}", path="/v1/charges/1/refunds")
    other = facts("{}", path="/v1/charges/2/refunds")
    assert fingerprint(one) != fingerprint(other)


def test_no_byte_moves_from_one_part_to_the_next() -> None:
    requests = [
        facts(b"c", path="/a", query="b", content_type=""),
        facts(b"c", path="/ab", query="", content_type=""),
        facts(b"", path="/a", query="bc", content_type=""),
        facts(b"c", method="POST/", path="a", query="b", content_type=""),
        facts(b"", path="/a", query="b", content_type="c"),
    ]
    assert len({fingerprint(request) for request in requests}) == len(requests)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a=1&b=2", "b=2&a=1"),
        ("a=1&b=2&a=3", "b=2&a=1&a=3"),
        ("a=%41", "a=A"),
        ("a=x+y", "a=x%20y"),
        ("%61=1", "a=1"),
        ("a", "a="),
        ("a=1&", "&&a=1"),
        ("a=%c3%a9", "a=%C3%A9"),
        ("a=b=c", "a=b%3Dc"),
    ],
)
def test_query_strings_that_decode_alike_are_the_same(one: str, other: str) -> None:
    assert fingerprint(facts(query=one)) == fingerprint(facts(query=other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a=1", "a=2"), ("a=1", "A=1"), ("a=1", ""), ("a=", ""), ("a=1&a=2", "a=2&a=1"),
        ("a=1&a=1", "a=1"), ("a=1&b=", "a=1"), ("a=1&b=2", "a=2&b=1"), ("a=1%26b=2", "a=1&b=2"),
        ("a=%2B", "a=+"), ("a=%ff", "a=%fe"), ("a=%ff", "a=%EF%BF%BD"), ("a=\udcff", "a=\udcfe"),
        ("ab=c", "a=bc"),
    ],
)  # fmt: skip
def test_query_strings_that_say_something_else_differ(one: str, other: str) -> None:
    assert fingerprint(facts(query=one)) != fingerprint(facts(query=other))


pairs = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=5)


def query_string(items: list[tuple[bytes, bytes]]) -> str:
    return "&".join(
        "".join(f"%{b:02x}" for b in name) + "=" + "".join(f"%{b:02X}" for b in value)
        for name, value in items
    )


@given(pairs, pairs)
def test_queries_are_equal_exactly_when_each_names_values_are(one, other) -> None:
    def by_name(items):
        return sorted(items, key=lambda pair: pair[0])

    alike = fingerprint(facts(query=query_string(one))) == fingerprint(
        facts(query=query_string(other))
    )
    assert alike == (by_name(one) == by_name(other))


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "application/json;charset=ISO-8859-1",
        "Application/JSON",
        " application/json ;  profile=x",
    ],
)
def test_parameters_and_case_of_the_media_type_are_ignored(content_type: str) -> None:
    assert fingerprint(facts('{"a": 1}', content_type=content_type)) == of_json('{"a":1}')


def test_what_a_server_may_decode_badly_is_still_fingerprinted() -> None:
    request = facts(method="P\ud800", path="/\udcff", query="\udc80=\udc81", content_type="\ud800")
    assert len(fingerprint(request)) == 32


# --- Other bodies --------------------------------------------------------------------------------


def test_empty_body_and_empty_object_differ() -> None:
    assert of_json("") != of_json("{}")
    assert of_json("") != of_json("null")


@pytest.mark.parametrize("content_type", ["", "text/plain", "text/json", "application/jsonx"])
def test_other_bodies_are_compared_by_their_bytes(content_type: str) -> None:
    def digest(body: bytes) -> bytes:
        return fingerprint(facts(body, content_type=content_type))

    assert digest(b'{"a":1}') == digest(b'{"a":1}')
    assert digest(b'{"a":1}') != digest(b'{"a": 1}')
    assert digest(b"\xff\x00") != digest(b"\xff")


def test_raw_mode_compares_json_by_its_bytes() -> None:
    assert of_json('{"a":1}', raw=True) == of_json('{"a":1}', raw=True)
    assert of_json('{"a":1}', raw=True) != of_json('{"a": 1}', raw=True)
    assert of_json("{NaN", raw=True) != of_json("{NaN]", raw=True)


def test_raw_mode_still_covers_method_path_query_and_media_type() -> None:
    requests = [
        facts("{}"),
        facts("{}", method="PUT"),
        facts("{}", path="/x"),
        facts("{}", query="a=1"),
        facts("{}", content_type="text/plain"),
    ]
    assert len({fingerprint(request, raw=True) for request in requests}) == len(requests)


def test_raw_mode_takes_a_parsed_form_as_a_form() -> None:
    assert of_form(("a", "1"), ("b", "2"), raw=True) == of_form(("b", "2"), ("a", "1"))


# --- Forms ---------------------------------------------------------------------------------------


def test_empty_value_and_absent_field_differ() -> None:
    assert of_form(("a", "1"), ("b", "")) != of_form(("a", "1"))


def test_order_of_fields_is_ignored_and_order_of_one_fields_values_is_not() -> None:
    assert of_form(("a", "1"), ("b", "2"), ("a", "3")) == of_form(
        ("b", "2"), ("a", "1"), ("a", "3")
    )
    assert of_form(("a", "1"), ("a", "2")) != of_form(("a", "2"), ("a", "1"))
    assert of_form(("a", "1"), ("a", "1")) != of_form(("a", "1"))


def test_body_is_not_looked_at_where_a_form_is_given() -> None:
    one = facts(b"already read", content_type=FORM, form=Form([("a", "1")]))
    other = facts(b"", content_type=FORM, form=Form([("a", "1")]))
    assert fingerprint(one) == fingerprint(other)


def test_new_boundary_is_the_same_request() -> None:
    def digest(boundary: str) -> bytes:
        content_type = f"multipart/form-data; boundary={boundary}"
        return of_form(("a", "1"), files=[upload()], content_type=content_type)

    assert digest("aaa") == digest("bbb")


def test_each_property_of_a_file_counts() -> None:
    uploads = [
        [],
        [upload()],
        [upload(b"y")],
        [upload(field="other")],
        [upload(filename="b.pdf")],
        [upload(content_type="text/plain")],
        [upload(), upload()],
    ]
    digests = {of_form(("a", "1"), files=files, content_type=MULTIPART) for files in uploads}
    assert len(digests) == len(uploads)


def test_order_of_files_counts_within_a_field_only() -> None:
    def digest(*files: FileFacts) -> bytes:
        return of_form(files=files, content_type=MULTIPART)

    one, two, other = upload(b"1"), upload(b"2"), upload(field="other")
    assert digest(one, other, two) == digest(other, one, two)
    assert digest(one, two) != digest(two, one)


def test_parameters_of_a_files_media_type_are_ignored() -> None:
    files = [upload(content_type="Text/CSV; charset=utf-8")]
    assert of_form(files=files) == of_form(files=[upload(content_type="text/csv")])


def test_form_encodings_and_json_of_the_same_fields_differ() -> None:
    digests = {
        of_form(("a", "1")),
        of_form(("a", "1"), content_type=MULTIPART),
        of_json('{"a":"1"}'),
        fingerprint(facts("a=1", content_type=FORM)),
    }
    assert len(digests) == 4


def test_empty_form_and_empty_body_differ() -> None:
    assert of_form() != fingerprint(facts(content_type=FORM))


form_fields = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=4)
form_files = st.lists(
    st.builds(
        FileFacts,
        field=st.text(max_size=2),
        filename=st.text(max_size=2),
        content_type=st.sampled_from(["", "text/csv"]),
        sha256=st.binary(min_size=32, max_size=32),
    ),
    max_size=2,
)


@given(form_fields, form_files, form_fields, form_files)
@example([("ab", "c")], [], [("a", "bc")], [])
@example([("a", "b"), ("c", "d")], [], [("a", "b"), ("cd", "")], [])
@example([("a", "b")], [], [], [FileFacts("a", "b", "", b"")])
def test_forms_are_equal_exactly_when_each_names_values_are(
    fields, files, other_fields, other_files
) -> None:
    def by_name(fields, files):
        return sorted(fields, key=lambda pair: pair[0]), sorted(files, key=lambda file: file.field)

    alike = of_form(*fields, files=files) == of_form(*other_fields, files=other_files)
    assert alike == (by_name(fields, files) == by_name(other_fields, other_files))


# --- Exclusion -----------------------------------------------------------------------------------

TOKEN = frozenset({"client_token"})


def test_excluded_member_counts_neither_present_nor_absent_nor_changed() -> None:
    bodies = ['{"a":1}', '{"a":1,"client_token":"x"}', '{"client_token":null,"a":1}']
    assert len({of_json(body, exclude=TOKEN) for body in bodies}) == 1
    assert len({of_json(body) for body in bodies}) == 3


def test_exclusion_reaches_the_top_level_only() -> None:
    one, other = '{"a":{"client_token":1}}', '{"a":{"client_token":2}}'
    assert of_json(one, exclude=TOKEN) != of_json(other, exclude=TOKEN)
    assert of_json('["client_token"]', exclude=TOKEN) != of_json("[]", exclude=TOKEN)
    assert of_json('"client_token"', exclude=TOKEN) != of_json('""', exclude=TOKEN)


def test_exclusion_leaves_the_other_members_in() -> None:
    assert of_json('{"a":1}', exclude=TOKEN) != of_json('{"a":2}', exclude=TOKEN)
    assert of_json("{}", exclude=TOKEN) != of_json("", exclude=TOKEN)


def test_excluded_form_field_and_file_do_not_count() -> None:
    plain = of_form(("a", "1"), exclude=TOKEN)
    assert plain == of_form(("client_token", "x"), ("a", "1"), exclude=TOKEN)
    assert plain == of_form(("a", "1"), files=[upload(field="client_token")], exclude=TOKEN)
    assert plain != of_form(("a", "2"), exclude=TOKEN)
    assert plain != of_form(("a", "1"), files=[upload()], exclude=TOKEN)


def test_exclusion_has_no_say_in_raw_mode() -> None:
    one, other = '{"client_token":1}', '{"client_token":2}'
    assert of_json(one, exclude=TOKEN, raw=True) != of_json(other, exclude=TOKEN, raw=True)


# --- Versions ------------------------------------------------------------------------------------

#: Never edit these: they are what records in databases were made with. A rule that changes one is
#: a new version.
GOLDEN_V1 = [
    (facts(), {},
     "c1606e7ee032e52ecfd0db124904c6b37cd1d938e98a26ffd75c67787362032f"),
    (facts("{}"), {},
     "267a5d924934f02c758d323935d05d81d31a396285eae168d3275ba1906a5b2c"),
    (facts('{"amount":4200,"currency":"EUR","source":"tok_visa"}'), {},
     "0b4c265d14f1f963f08971a16d0d510a686fe80661d6a3d26bbef8018c25f27c"),
    (facts('{"z":[1,1.0,1e1,-0,true,false,null,"1"],"é":{"b":"\\u007f\\u2028\\n","a":"😀"}}'), {},
     "813d5bd72a72efdb6014717c79d6a618f3b355ab6a52abdfa7fff18713f851ed"),
    (facts('"top"', method="PATCH", path="/v1/charges/ch_1", query="b=2&a=%C3%A9&b=1&c"), {},
     "56bd8c41e29f454d4ea8327212ac51bf2546be8d7772a0d78ad26a9831e88519"),
    (facts(b"\x00\xff", content_type="Application/Octet-Stream; x=y"), {},
     "7f400da17f27b735186bae1c1d1f995bd05726be5f9c16b037d7c377adff5270"),
    (facts("a=1&b=", content_type=FORM, form=Form([("b", ""), ("a", "1")])), {},
     "ffa7396a8f99979da256e8e9de3c153a8c759a66910a2d42eef241d6c7974d8e"),
    (facts(content_type=MULTIPART, form=Form([("note", "é")], [upload(b"content")])), {},
     "8c4d95321fc929a666154d3a5959835ea06c89a02de2a8c2aeb209c0813ec002"),
    (facts('{ "a": 1 }'), {"raw": True},
     "1f8f6328f428f078793db56d6044fcd63d434562eee7661b14f866c9811dd14e"),
    (facts('{"a": 1, "client_token": "x"}'), {"exclude": {"client_token"}},
     "6c0cd6dba3572b99e5b43273ec2c34f4782b953803dc49e2e66ab56316151a8d"),
]  # fmt: skip


@pytest.mark.parametrize(("request_facts", "options", "expected"), GOLDEN_V1)
def test_version_1_is_pinned(request_facts: RequestFacts, options: dict, expected: str) -> None:
    assert fingerprint(request_facts, version=1, **options).hex() == expected


def test_version_1_is_the_documented_formula() -> None:
    def part(value: bytes) -> bytes:
        return len(value).to_bytes(8, "big") + value

    query = part(b"a") + part(b"") + part(b"b") + part(b"2")
    body = b'{"a":["\xed\xa0\x801.50",true,null],"b":"\xc3\xa9"}'
    message = b"".join(
        map(part, [b"idempotency/fingerprint/1", b"POST", b"/x", query, b"application/json"])
    )
    message += part(b"json") + part(body)
    request = facts('{"b": "\\u00e9", "a": [1.50, true, null]}', path="/x", query="b=2&a")
    assert fingerprint(request) == hashlib.sha256(message).digest()


@pytest.mark.parametrize("version", [0, 2, -1])
def test_unknown_version_is_an_error_of_its_own(version: int) -> None:
    with pytest.raises(UnknownVersion, match=str(version)):
        fingerprint(facts("{}"), version=version)


def test_stored_version_decides_how_a_retry_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = of_json('{"a":1}')
    rules = {**fingerprints.SUPPORTED_VERSIONS, 2: lambda request, exclude, raw: b"2" * 32}
    monkeypatch.setattr(fingerprints, "SUPPORTED_VERSIONS", rules)
    assert of_json('{ "a": 1 }', version=1) == stored
    assert of_json('{ "a": 1 }', version=2) != stored


def test_current_version_is_supported() -> None:
    assert max(fingerprints.SUPPORTED_VERSIONS) == fingerprints.CURRENT_VERSION


def test_request_facts_do_not_print_bodies() -> None:
    assert "secret" not in repr(facts("secret", form=Form([("a", "secret")])))
