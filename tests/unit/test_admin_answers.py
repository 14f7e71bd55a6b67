"""Stored answers as the admin shows them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.admin import answers
from idempotency.models import StoredResponse


def answer(
    body: bytes | None, content_type: str = "application/json", *headers: list[str]
) -> StoredResponse:
    return StoredResponse(
        key_id=1, status=201, headers=[["Content-Type", content_type], *headers], body=body
    )


def text_of(body: bytes | None, content_type: str = "application/json") -> str | None:
    return answers.show_answer(answer(body, content_type), may_see_body=True).text


def test_json_is_indented_and_its_literals_stay_as_they_were() -> None:
    stored = (
        b'{"amount":1.10,"big":12345678901234567890,"a":1,"a":2,'
        b'"t":"\\u00e9, {x}: \\"q\\"","e":{},"l":[1,[]]}'
    )
    assert text_of(stored) == (
        '{\n  "amount": 1.10,\n  "big": 12345678901234567890,\n  "a": 1,\n  "a": 2,\n'
        '  "t": "\\u00e9, {x}: \\"q\\"",\n  "e": {},\n  "l": [\n    1,\n    []\n  ]\n}'
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_indenting_never_changes_the_value(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert json.loads(answers.pretty_json(text)) == json.loads(text)


@pytest.mark.parametrize("text", ["{", '{"a":1}}', "plain", '"unterminated', ""])
def test_what_is_no_json_stays_as_it_is(text: str) -> None:
    assert answers.pretty_json(text) == text


@pytest.mark.parametrize("depth", [25, 30_000])
def test_deep_nesting_does_not_blow_the_page_up(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    assert answers.pretty_json(nested) == nested


def test_a_viewer_without_the_permission_sees_no_body() -> None:
    shown = answers.show_answer(answer(b'{"card":"4242"}'), may_see_body=False)
    assert shown.text is None
    assert "Can see stored response bodies" in shown.note
    assert "4242" not in repr(shown)


def test_members_that_are_masked_are_hidden_from_whoever_may_see_bodies() -> None:
    stored = answer(b'{"id":"ch_1","amount":1.10,"card":{"number":"4242","brand":"visa"}}')
    shown = answers.show_answer(stored, may_see_body=True)
    assert shown.text is not None
    assert '"amount": 1.10' in shown.text
    assert '"number": "[hidden]"' in shown.text
    assert "4242" not in repr(shown)
    assert "hunter2" not in answers.show_json({"context": {"password": "hunter2"}})


def test_a_secret_that_is_cut_in_two_is_hidden_to_its_end() -> None:
    body = b'{"a":"' + b"x" * (answers.SHOWN_BYTES - 24) + b'","token":"hunter two"}'
    assert b"hunt" in body[: answers.SHOWN_BYTES]
    shown = answers.show_answer(answer(body), may_see_body=True)
    assert shown.text is not None
    assert shown.text.endswith('"token":"[hidden]"')


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Proxy-Authorization",
        "WWW-Authenticate",
        "Authentication-Info",
        "Set-Cookie",
        "X-Api-Key",
        "X-Auth-Token",
        "X-Client-Secret",
        "X-Signature",
    ],
)
def test_headers_that_hold_secrets_are_hidden_from_everybody(name: str) -> None:
    stored = answer(b"{}", "application/json", [name, "hunter2"])
    shown = answers.show_answer(stored, may_see_body=True)
    assert [header.value for header in shown.headers if header.name == name] == [None]
    assert "hunter2" not in repr(shown)


def test_other_headers_are_shown() -> None:
    stored = answer(b"{}", "application/json", ["Location", "/v1/charges/ch_1"])
    shown = answers.show_answer(stored, may_see_body=False)
    assert [(header.name, header.value) for header in shown.headers] == [
        ("Content-Type", "application/json"),
        ("Location", "/v1/charges/ch_1"),
    ]


def test_binary_bodies_are_shown_as_their_first_bytes() -> None:
    shown = answers.show_answer(answer(bytes(range(256)) * 8, "application/pdf"), may_see_body=True)
    assert shown.text is not None
    lines = shown.text.splitlines()
    assert len(lines) == answers.SHOWN_BINARY // 16
    assert lines[0].startswith("00000000  00 01 02 03")
    assert lines[4].endswith("@ABCDEFGHIJKLMNO")
    assert "Not text" in shown.note
    assert shown.size.replace("\xa0", " ") == "2.0 KB"


def test_a_large_body_is_cut_and_the_page_says_so() -> None:
    shown = answers.show_answer(answer(b'["' + b"a" * 200_000 + b'"]'), may_see_body=True)
    assert shown.text is not None
    assert len(shown.text) == answers.SHOWN_BYTES
    assert "Only the first" in shown.note


@pytest.mark.parametrize("offset", range(4))
def test_a_cut_inside_a_character_does_not_make_text_binary(offset: int) -> None:
    body = b"x" * (answers.SHOWN_BYTES - offset) + "€€€".encode()
    shown = answers.show_answer(answer(body, "text/plain"), may_see_body=True)
    assert shown.text is not None
    assert shown.text.strip("x€") == ""


def test_characters_that_nobody_sees_are_spelt_out() -> None:
    assert text_of("pay\u202egnp\u200b\x1b[31m".encode(), "text/plain") == (
        "pay\\u202egnp\\u200b\\u001b[31m"
    )


def test_an_empty_body_and_a_body_that_was_not_kept_are_told_apart() -> None:
    empty = answers.show_answer(answer(b""), may_see_body=True)
    lost = answers.show_answer(answer(None), may_see_body=True)
    assert (empty.text, empty.note) == (None, "The answer has no body.")
    assert lost.text is None
    assert "not kept" in lost.note


@pytest.mark.parametrize(("status", "shown"), [(201, "201 Created"), (299, "299")])
def test_a_status_has_its_phrase_where_there_is_one(status: int, shown: str) -> None:
    stored = StoredResponse(key_id=1, status=status, headers=[], body=b"")
    assert answers.show_answer(stored, may_see_body=True).status == shown
