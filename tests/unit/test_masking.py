"""What nobody is shown, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.masking import FIELDS, HIDDEN, Mask, mask


@pytest.mark.parametrize(
    "name",
    [
        *FIELDS,
        *("client_secret", "clientSecret", "CLIENT-SECRET", "X-Api-Key", "APIKey", "apikey"),
        *("cardNumber", "cardnumber", "old_card_number", "cvc2", "accessToken", "Set-Cookie"),
        *("password.hash", "passwordHash", "WWW-Authenticate", "PIN"),
    ],
)
def test_a_name_is_known_in_every_spelling(name: str) -> None:
    assert Mask().hides(name)


@pytest.mark.parametrize(
    "name",
    [
        *("id", "amount", "number", "card", "last4", "shipping", "opinion", "pants", "expand"),
        *("Location", "Content-Type", "ETag", "secretary", "tokenized", "account", ""),
    ],
)
def test_names_that_only_look_like_one_are_shown(name: str) -> None:
    assert not Mask().hides(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"card":{"number":1,"last4":2}}', '{"card":{"number":"[hidden]","last4":2}}'),
        ('{"card":[{"x":[1],"number":[1,{}]}]}', '{"card":[{"x":[1],"number":"[hidden]"}]}'),
        ('{"card":{},"number":1}', '{"card":{},"number":1}'),
        ('{"secret":{"a":["}",{}]},"b":1.10,"b":2}', '{"secret":"[hidden]","b":1.10,"b":2}'),
        ('{ "pin" :\n 1 }', '{ "pin" :\n "[hidden]" }'),
        ('{"\\u0070in":"\\"x\\"","a":"\\"pin\\":1"}', '{"\\u0070in":"[hidden]","a":"\\"pin\\":1"}'),
        ('["pin","a"]', '["pin","a"]'),
        ('{"pin":1}\n{"pin":2}', '{"pin":"[hidden]"}\n{"pin":"[hidden]"}'),
        # Cut, or broken.
        ('{"pin":', '{"pin":'),
        ('{"pin":"one two', '{"pin":"[hidden]"'),
        ('{"pin":"one two\\', '{"pin":"[hidden]"'),
        ('{"pin":{"a":[1', '{"pin":"[hidden]"'),
        ('{"a":{"pin":}}', '{"a":{"pin":}}'),
        ('}]{"pin":1}', '}]{"pin":"[hidden]"}'),
        ("pin: 1", "pin: 1"),
    ],
)
def test_only_the_value_of_a_hidden_member_is_replaced(text: str, shown: str) -> None:
    assert Mask().text(text) == shown


def masked(value: Any, around: str = "") -> Any:
    """The same for a value, by a name for each place."""
    if isinstance(value, list):
        return [masked(inner, around) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: HIDDEN if Mask().hides(f"{around} {name}") else masked(inner, f"{around} {name}")
        for name, inner in value.items()
    }


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["pin", "card", "number", "a", '"pin":', "account"]), inner
            )
        ),
    ),
    st.sampled_from([None, 1]),
)
def test_text_is_masked_like_the_value_it_stands_for(value: Any, indent: int | None) -> None:
    assert json.loads(Mask().text(json.dumps(value, indent=indent))) == masked(value)


def test_a_project_adds_names_and_takes_none_away(settings: Any) -> None:
    assert not mask().hides("holderName")
    settings.IDEMPOTENCY = {"MASKED_FIELDS": ["holder_name"]}
    assert mask().hides("holderName")
    assert mask().hides("password")
