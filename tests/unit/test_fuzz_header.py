"""The header's grammar beside a second reading of it, from the RFC and not from our parser."""

from __future__ import annotations

import re

import http_sf
from django.http import HttpRequest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idempotency.core.errors import KeyInvalid
from idempotency.http.requests import HEADER_IN_META, build_policy, header_key
from tests.counts import repeats

many = settings(max_examples=repeats(50_000, 100), deadline=None)

# RFC 9651, section 3: a string, and parameters of bare items.
STRING = r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
NUMBER = r"-?(?:[0-9]{1,15}|[0-9]{1,12}\.[0-9]{1,3})"
TOKEN = r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
BOOLEAN = r"\?[01]"
DATE = r"@-?[0-9]{1,15}"
NAME = r"[a-z*][a-z0-9_.*-]*"
PARAMETERS = rf"(?:; *{NAME}(?:=(?:{STRING}|{NUMBER}|{TOKEN}|{BOOLEAN}|{DATE}))?)*"
ITEM = re.compile(STRING + PARAMETERS, re.DOTALL)
#: Their own rules (base64, UTF-8) are not read a second time here.
BYTES_OR_DISPLAY = re.compile(r"=[:%]")

#: Close to the grammar, so that the fuzz reaches every branch.
near = st.text(alphabet='"\\;,=?@*-. \tabAB019\x00\x7fé\n', max_size=24)
pieces = st.lists(
    st.sampled_from(['"', '"key"', "key", ";", "; ", "v", "=", "1", "-1.5", "?1", "@9", "*", "A",
                     '"w"', "\\", '\\"', ",", " ", "\t", "é", "x" * 250]),
    max_size=8,
).map("".join)  # fmt: skip
headers = near | pieces | st.text(st.characters(max_codepoint=0x17F), max_size=300)


def read_again(header: str) -> str | None:
    """The key that a header spells, or None for a refusal."""
    value = header.strip(" \t")
    if value.startswith('"'):
        item = ITEM.fullmatch(value)
        key = re.sub(r"\\(.)", r"\1", item[1]) if item else ""
    else:
        key = "" if re.search(r'[",;\\]', value) else value
    return key if re.fullmatch(r"[\x21-\x7e]{1,255}", key) else None


def read(header: str) -> str | None:
    """What the product makes of it. Any other exception than its own is a 500."""
    request = HttpRequest()
    request.META[HEADER_IN_META] = header
    try:
        return header_key(request, build_policy({}))
    except KeyInvalid:
        return None


@many
@given(headers)
@example('"a"; v')
@example('"a";v=1.')
@example('"a";v=1234567890123456')
@example('"a";v=-')
@example('"a"\n')
@example("\ta\t ")
@example("x" * 255)
@example("x" * 256)
@example('"' + r"\"" * 256 + '"')
@example('"a";v=1,"b"')
def test_a_header_is_read_as_the_rfc_has_it(header: str) -> None:
    if not BYTES_OR_DISPLAY.search(header):
        assert read(header) == read_again(header)


@many
@given(headers | st.text(alphabet='":;=%@?aA09+/ f', max_size=24).map('"k";v='.__add__))
def test_a_quoted_key_is_read_as_the_library_for_structured_fields_reads_it(header: str) -> None:
    value = header.strip(" \t")
    if not value.startswith('"'):
        return
    try:
        item, _ = http_sf.parse(value.encode("ascii"), tltype="item")
    except (ValueError, UnicodeEncodeError):
        assert read(header) is None
    else:
        assert read(header) == (item if re.fullmatch(r"[\x21-\x7e]{1,255}", item) else None)


@many
@given(st.binary(max_size=40))
def test_what_a_server_decodes_of_any_bytes_is_a_key_or_a_400(raw: bytes) -> None:
    # WSGI hands headers over as Latin-1 (PEP 3333).
    header = raw.decode("latin-1")
    if not BYTES_OR_DISPLAY.search(header):
        assert read(header) == read_again(header)
