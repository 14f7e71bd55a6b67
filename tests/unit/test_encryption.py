"""Sealing and opening, without a database."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from idempotency import encryption
from idempotency.conf import settings as our_settings
from idempotency.core.responses import RecordedResponse

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
KEYS = encryption._Keys("a", {"a": Fernet(NEW)})


@pytest.fixture
def configure(settings: Any) -> Any:
    def change(*keys: Any) -> None:
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": keys}

    return change


@given(st.none() | st.binary(), st.booleans())
def test_any_bytes_come_back_as_they_were(body: bytes | None, nested: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encryption, "_keys", lambda: KEYS)
        given = RecordedResponse(200, (("ETag", '"1"'),), body)
        if nested:  # a body that looks like one of ours
            given = RecordedResponse(200, given.headers, encryption.seal(given).body)
        sealed = encryption.seal(given)
        assert encryption.unseal(sealed) == given
        assert body is None or sealed.body != given.body


@given(
    st.recursive(
        st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encryption, "_keys", lambda: KEYS)
        assert encryption.open_json(encryption.seal_json(value)) == value


def test_a_key_is_named_without_being_told(configure: Any) -> None:
    configure(NEW, OLD)
    name = encryption.writing_key()
    assert name is not None
    assert len(name) == 8
    assert name not in NEW
    configure(NEW.encode())
    assert encryption.writing_key() == name


@pytest.mark.parametrize(
    "keys",
    ["secret-key", [OLD, None], [OLD, 7], {OLD}, None],
    ids=["text", "none", "int", "set", "no"],
)
def test_keys_that_are_no_list_are_refused_unseen(settings: Any, keys: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": keys}
    with pytest.raises(ImproperlyConfigured) as caught:
        our_settings()
    assert "must be a list of keys" in str(caught.value)
    assert "secret-key" not in str(caught.value)
    assert OLD not in str(caught.value)


def test_the_settings_do_not_print_their_secrets(settings: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD], "SECRET": "hunter2"}
    assert OLD not in repr(our_settings())
    assert "hunter2" not in repr(our_settings())


def test_without_cryptography_it_says_what_to_install(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    configure()
    assert encryption.writing_key() is None
    configure(NEW)
    with pytest.raises(ImproperlyConfigured, match=r"django-idempotency\[encryption\]"):
        encryption.writing_key()
    with pytest.raises(encryption.Unreadable, match=r"django-idempotency\[encryption\]"):
        encryption.open_json({encryption.SEALED_MEMBER: ["0badc0de", "token"]})
