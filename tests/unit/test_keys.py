"""Header grammar (contract cases 3 to 6), scopes and derived keys."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
import uuid
from itertools import combinations

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotency.core import keys
from idempotency.core.errors import KeyInvalid
from idempotency.core.keys import Scope, parse_body_field, parse_header

UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"
VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
valid_keys = st.text(alphabet=VISIBLE, min_size=1, max_size=keys.MAX_LENGTH)
#: Text close to the grammar, so that the fuzz reaches every branch of the parser.
near_headers = st.text(alphabet='"\\;,=:?@%-. \tabAB01*\x00\x7fé\ud800\n', max_size=40)


# --- Accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        (f'"{UUID}"', UUID),
        (UUID, UUID),
        ('"abc";v=1', "abc"),
        ('"abc"; v=1;w="a, b";x=?0;y=:AA==:;z', "abc"),
        ("  abc\t", "abc"),
        ('\t "abc" ', "abc"),
        (r'"a\"b\\c"', r'a"b\c'),
        ('"a,b;c"', "a,b;c"),
        ("'abc'", "'abc'"),
        (":YWJj:", ":YWJj:"),
        ("?1", "?1"),
        ("42", "42"),
        ("x" * 255, "x" * 255),
        ('"' + "x" * 255 + '"', "x" * 255),
        ('"' + r"\"" * 255 + '"', '"' * 255),
    ],
)
def test_header_spells_key(header: str, key: str) -> None:
    assert parse_header(header) == key


def test_quoted_and_bare_forms_are_one_key() -> None:
    assert parse_header('"abc"') == parse_header("abc")


def test_keys_that_differ_in_case_are_two_keys() -> None:
    digests = {Scope("r", "t", parse_header(key)).digest for key in ("abc", "ABC", "Abc")}
    assert len(digests) == 3


@pytest.mark.parametrize("character", VISIBLE)
def test_every_visible_character_is_accepted_in_quotes(character: str) -> None:
    assert parse_header(http_sf.ser(character)) == character


@pytest.mark.parametrize("character", sorted(set(VISIBLE) - set('",;\\')))
def test_every_visible_character_but_four_is_accepted_bare(character: str) -> None:
    assert parse_header(f"a{character}b") == f"a{character}b"


@pytest.mark.parametrize(
    "key",
    [
        "'; DROP TABLE idempotency_key; --".replace(" ", "/**/"),
        "1'OR'1'='1",
        "*3\\r\\n$3\\r\\nSET",
        "${jndi:ldap://x}",
        "../../etc/passwd",
        "{{7*7}}",
        "%00%0d%0aSet-Cookie:x",
    ],
)
def test_injection_strings_of_visible_characters_are_inert(key: str) -> None:
    assert parse_header(http_sf.ser(key)) == key
    assert Scope("r", "t", key).digest != Scope("r", "t", key + "x").digest


# --- Refused -------------------------------------------------------------------------------------

MALFORMED = {
    "empty": "",
    "blank": " \t ",
    "empty string": '""',
    "space in quotes": '"a b"',
    "blank in quotes": '" "',
    "space in a bare key": "a b",
    "tab in a bare key": "a\tb",
    "too long": "x" * 256,
    "too long in quotes": '"' + "x" * 256 + '"',
    "too long once unescaped": '"' + r"\\" * 256 + '"',
    "accent": "é",
    "accent in quotes": '"é"',
    "emoji": "😀",
    "lone surrogate": "\ud800",
    "lone surrogate in quotes": '"\ud800"',
    "no-break space": "\xa0abc",
    "NUL": "a\x00b",
    "NUL in quotes": '"a\x00b"',
    "DEL": "a\x7f",
    "DEL in quotes": '"a\x7f"',
    "line feed": "a\nb",
    "trailing line feed": "abc\n",
    "trailing line feed in quotes": '"abc"\n',
    "carriage return and line feed": "a\r\nSet-Cookie: x",
    "bad escape": r'"a\x"',
    "escape at the end": '"a\\',
    "escaped closing quote": r'"a\"',
    "unterminated quote": '"a',
    "lone quote": '"',
    "quote inside a bare key": 'a"b',
    "closing quote only": 'abc"',
    "backslash in a bare key": r"a\b",
    "bare key with parameters": "abc;v=1",
    "two bare header lines": "a, b",
    "two bare header lines without a blank": "a,b",
    "two quoted header lines": '"a", "b"',
    "the same header line twice": '"a","a"',
    "two header lines with parameters": '"a";v=1,"b"',
    "an empty second header line": "a,",
    "text after the quote": '"a"b',
    "two strings": '"a" "b"',
    "blank before the parameters": '"a" ;v=1',
    "parameters without a name": '"a";',
    "parameters with a bad value": '"a";v=',
    "parameters with a bad name": '"a";V=1',
}


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED)
def test_malformed_header_is_refused(header: str) -> None:
    with pytest.raises(KeyInvalid):
        parse_header(header)


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("", "empty"),
        ("a,b", "once"),
        ('"a","b"', "once"),
        ("abc;v=1", "double quotes"),
        ("x" * 256, "at most 255"),
        ("é", "visible ASCII"),
        (r'"a\x"', "escape"),
    ],
)
def test_detail_says_what_to_do(header: str, advice: str) -> None:
    with pytest.raises(KeyInvalid, match=advice):
        parse_header(header)


@given(st.text(alphabet="QZ", min_size=8, max_size=300), st.sampled_from(['"{}', "{};", '"{}"x',
       "{},", "{} x", "é{}", r'"{}\x"', '"{}";v=', "{}" + "x" * 256]))  # fmt: skip
def test_error_never_contains_the_key(secret: str, spelling: str) -> None:
    with pytest.raises(KeyInvalid) as caught:
        parse_header(spelling.format(secret))
    seen = repr(caught.value) + str(caught.value)
    assert secret not in seen
    # A traceback prints the chained parser error too, unless it was cut off.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@given(near_headers | st.text(max_size=300))
@example('"a";a=@99999999999999')
@example('"a";a=:A:')
@example('"a";a=%"%ff"')
def test_parsing_ends_in_a_key_or_key_invalid(header: str) -> None:
    try:
        key = parse_header(header)
    except KeyInvalid:
        return
    assert 1 <= len(key) <= keys.MAX_LENGTH
    assert set(key) <= set(VISIBLE)
    assert parse_header(http_sf.ser(key)) == key


@given(valid_keys, st.sampled_from(["", ";v", '; v="a,b"', ";v=1.5;w=tok"]))
def test_quoted_spelling_round_trips(key: str, parameters: str) -> None:
    assert parse_header(http_sf.ser(key) + parameters) == key


@given(valid_keys.filter(lambda key: not set(key) & set('",;\\')))
def test_bare_spelling_is_the_key(key: str) -> None:
    assert parse_header(key) == key


@given(valid_keys, valid_keys, st.sampled_from([",", ", "]))
def test_two_header_lines_are_refused(first: str, second: str, joint: str) -> None:
    with pytest.raises(KeyInvalid):
        parse_header(http_sf.ser(first) + joint + http_sf.ser(second))


# --- Policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [parse_header, parse_body_field])
def test_policy_may_raise_the_minimum_length(parse) -> None:
    assert parse("x" * 16, min_length=16) == "x" * 16
    with pytest.raises(KeyInvalid, match="at least 16"):
        parse("x" * 15, min_length=16)


def test_minimum_length_counts_characters_of_the_key_not_of_its_spelling() -> None:
    with pytest.raises(KeyInvalid):
        parse_header('"abc"', min_length=5)


@pytest.mark.parametrize("parse", [parse_header, parse_body_field])
@pytest.mark.parametrize("key", [UUID, UUID.upper(), str(uuid.UUID(int=0))])
def test_policy_may_demand_a_uuid(parse, key: str) -> None:
    assert parse(key, uuid_only=True) == key


@pytest.mark.parametrize("parse", [parse_header, parse_body_field])
@pytest.mark.parametrize(
    "key",
    [UUID.replace("-", ""), "{" + UUID + "}", "urn:uuid:" + UUID, UUID[:-1] + "g", UUID + "0"],
)
def test_other_spellings_of_a_uuid_are_refused_where_one_is_demanded(parse, key: str) -> None:
    with pytest.raises(KeyInvalid, match="UUID"):
        parse(key, uuid_only=True)


# --- Body field ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["abc", UUID, '"abc"', "a,b;c", r"a\b", "x" * 255])
def test_body_field_is_the_key_as_it_stands(key: str) -> None:
    assert parse_body_field(key) == key


@pytest.mark.parametrize(
    "value",
    [None, "", " ", " abc", "abc\n", "a b", "é", "a\x00", "\ud800", "x" * 256,
     0, 1, 1.5, True, b"abc", ["abc"], {"key": "abc"}],
)  # fmt: skip
def test_malformed_body_field_is_refused(value: object) -> None:
    with pytest.raises(KeyInvalid):
        parse_body_field(value)


@given(st.text(max_size=300))
def test_body_field_and_quoted_header_accept_the_same_keys(key: str) -> None:
    def outcome(parse, value: str) -> str | None:
        try:
            return parse(value)
        except KeyInvalid:
            return None

    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert outcome(parse_body_field, key) == outcome(parse_header, quoted)


# --- Scope ---------------------------------------------------------------------------------------


def test_scope_digest_is_sha256_over_length_prefixed_parts() -> None:
    def part(text: bytes) -> bytes:
        return len(text).to_bytes(8, "big") + text

    message = part(b"idempotency/scope/1") + part(b"POST /x") + part(b"acct_1") + part(b"abc")
    assert Scope("POST /x", "acct_1", "abc").digest == hashlib.sha256(message).digest()


def test_scope_digest_is_pinned_because_stored_rows_depend_on_it() -> None:
    assert Scope("POST /v1/charges", "acct_é", UUID).digest.hex() == (
        "5883179853698d6400b6e48733c84f1f0e3ab7b1144c54a7388e180c7495e305"
    )


def test_route_tenant_and_key_each_make_another_scope() -> None:
    scopes = [
        Scope("POST /a", "acct_1", "k"),
        Scope("POST /b", "acct_1", "k"),
        Scope("POST /a", "acct_2", "k"),
        Scope("POST /a", "acct_1", "l"),
        Scope("acct_1", "POST /a", "k"),
    ]
    for one, other in combinations(scopes, 2):
        assert one.digest != other.digest


def test_a_parameter_by_another_name_is_the_same_route() -> None:
    one = Scope("POST /v1/charges/{charge_id}/refunds", "acct_1", "k")
    renamed = Scope("POST /v1/charges/{id}/refunds", "acct_1", "k")
    assert one.digest == renamed.digest
    other = Scope("POST /v1/charges/{id}/captures", "acct_1", "k")
    assert one.digest != other.digest != Scope("POST /v1/charges/x/refunds", "acct_1", "k").digest


def test_tenant_wide_scope_is_one_on_every_route() -> None:
    one = Scope("POST /a", "acct_1", "k", per_route=False)
    other = Scope("POST /b", "acct_1", "k", per_route=False)
    assert one.digest == other.digest
    assert one.route == "POST /a"
    assert one.digest != Scope("POST /a", "acct_2", "k", per_route=False).digest
    assert one.digest != Scope("POST /a", "acct_1", "k").digest


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
@example(("ab", "c", "d"), ("a", "bc", "d"))
@example(("a", "bc", "d"), ("a", "b", "cd"))
@example(("a", "", "b"), ("", "a", "b"))
def test_scope_digests_are_equal_only_for_equal_scopes(one, other) -> None:
    assert (Scope(*one).digest == Scope(*other).digest) == (one == other)


def test_scope_accepts_what_a_server_may_decode_badly() -> None:
    assert len(Scope("POST /\ud800", "\udcff", "k").digest) == 32


def test_scope_does_not_print_its_key() -> None:
    assert "secret-key" not in repr(Scope("POST /a", "acct_1", "secret-key"))


@given(st.lists(st.binary(max_size=12), max_size=5), st.lists(st.binary(max_size=12), max_size=5))
@example([b"ab", b"c"], [b"a", b"bc"])
@example([b""], [])
@example([b"\x00" * 8], [b"", b""])
def test_length_prefixed_parts_never_collide(one: list[bytes], other: list[bytes]) -> None:
    assert (keys.length_prefixed(*one) == keys.length_prefixed(*other)) == (one == other)


# --- Derived -------------------------------------------------------------------------------------


def test_downstream_key_follows_its_documented_formula() -> None:
    parts = (b"idempotency/downstream-key/1", b"7", b"gateway", b"payments.charge", b"call")
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    expected = hmac.new(b"secret", message, hashlib.sha256).hexdigest()
    derived = keys.derive_downstream_key(b"secret", 7, "gateway", "payments.charge", "call")
    assert derived == expected


def test_downstream_key_is_pinned_because_gateways_remember_it() -> None:
    assert keys.derive_downstream_key(b"secret", 7, "gateway", "payments.charge", "call") == (
        "c813311ee9c74e97a4001876cbddae39a58ed6205b70f28f7705d518f300b72d"
    )


def test_every_part_makes_another_downstream_key() -> None:
    calls = [
        (b"s", 1, "a", "b", "c"),
        (b"t", 1, "a", "b", "c"),
        (b"s", 2, "a", "b", "c"),
        (b"s", 1, "x", "b", "c"),
        (b"s", 1, "a", "x", "c"),
        (b"s", 1, "a", "b", "x"),
        (b"s", 1, "ab", "", "c"),
        (b"s", 1, "a", "bc", ""),
    ]
    assert len({keys.derive_downstream_key(*call) for call in calls}) == len(calls)


def test_downstream_key_is_a_key_that_any_gateway_takes() -> None:
    derived = keys.derive_downstream_key(b"s", "018f", "gateway", "charge", "call")
    assert len(derived) == 64
    assert parse_header(derived) == derived


def test_downstream_key_needs_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        keys.derive_downstream_key(b"", 1, "gateway", "charge", "call")


def test_log_digest_is_the_start_of_the_digest() -> None:
    digest = Scope("r", "t", "secret-key").digest
    assert keys.log_digest(digest) == digest.hex()[:12]
    assert "secret" not in keys.log_digest(digest)


def test_importing_keys_and_fingerprints_loads_no_django() -> None:
    code = (
        "import sys, idempotency.core.keys, idempotency.core.fingerprints;"
        "sys.exit(any(name.split('.')[0] == 'django' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
