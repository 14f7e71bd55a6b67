"""Encryption at rest of what may hold personal data: stored bodies, what operations keep for their
next step, and what messages of the outbox carry. By Fernet, from the extra ``encryption``.

``ENCRYPTION_KEYS`` lists the keys. The first one writes and all of them read; ``None`` in its
place writes in clear, to go over to encryption and back while processes of both kinds run.

What is sealed says so, and by which key, so that nothing is tried in vain and a key that is missing
has a name:

- a body, by a first header whose name no header field can have (RFC 9110, section 5.1);
- JSON, as ``{"idempotency:sealed": [id of the key, token]}``, a name that is refused to others.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from idempotency.conf import settings
from idempotency.core.responses import INTERNAL, RecordedResponse

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

__all__ = [
    "Unreadable",
    "bare",
    "is_readable",
    "key_of",
    "key_of_json",
    "open_json",
    "seal",
    "seal_json",
    "unseal",
    "writing_key",
]

#: Name of the header that says by which key the body is sealed. It is never sent.
SEALED_HEADER = f"{INTERNAL}sealed"
#: Name of the one member of sealed JSON.
SEALED_MEMBER = "idempotency:sealed"

_KEY_DOMAIN = b"idempotency/encryption-key/1"


class Unreadable(ImproperlyConfigured):
    """What is stored was sealed by a key that is not there any more, or was changed since."""


@dataclass(frozen=True, slots=True)
class _Keys:
    #: Id of the key that writes; None: it is written in clear.
    writer: str | None
    boxes: Mapping[str, Fernet]


def writing_key() -> str | None:
    """Id of the key that writes; None: what is written is in clear.

    Raises ``ImproperlyConfigured`` for a key that is none, and without ``cryptography``.
    """
    return _keys().writer


def is_readable(key: str | None) -> bool:
    """Whether the key of that id is there. None: in clear, so none is needed."""
    try:
        return key is None or key in _keys().boxes
    except ImproperlyConfigured:
        return False


# Bodies


def key_of(headers: Iterable[Any]) -> str | None:
    """Id of the key that sealed a body, by what is stored as its headers; None: it is in clear."""
    for name, value in headers:
        return str(value) if name == SEALED_HEADER else None
    return None


def seal(response: RecordedResponse) -> RecordedResponse:
    """The answer as it is to be stored."""
    keys = _keys()
    if keys.writer is None or response.body is None:
        return response
    marked = ((SEALED_HEADER, keys.writer), *response.headers)
    body = keys.boxes[keys.writer].encrypt(response.body)
    return RecordedResponse(response.status, marked, body)


def unseal(response: RecordedResponse) -> RecordedResponse:
    """The answer as it was given. Raises ``Unreadable``."""
    key = key_of(response.headers)
    if key is None:
        return response
    body = None if response.body is None else _open(key, response.body)
    return replace(response, headers=response.headers[1:], body=body)


def bare(response: RecordedResponse) -> RecordedResponse:
    """What is left of a sealed answer that cannot be read: all but its body."""
    headers = tuple(pair for pair in response.headers if pair[0] != SEALED_HEADER)
    return replace(response, headers=headers, body=None)


# JSON


def key_of_json(value: Any) -> str | None:
    """Id of the key that sealed a JSON value; None: it is in clear."""
    return str(value[SEALED_MEMBER][0]) if _is_sealed(value) else None


def seal_json(value: Any, encoder: type[json.JSONEncoder] | None = None) -> Any:
    """A JSON value as it is to be stored. Raises ``ValueError`` for an object with a member of our
    name, which would be taken for a sealed one."""
    if _is_sealed(value):
        raise ValueError(f"A JSON object cannot have a member named {SEALED_MEMBER!r}.")
    keys = _keys()
    if keys.writer is None:
        return value
    text = json.dumps(value, cls=encoder, separators=(",", ":"))
    token = keys.boxes[keys.writer].encrypt(text.encode())
    return {SEALED_MEMBER: [keys.writer, token.decode()]}


def open_json(value: Any) -> Any:
    """A JSON value as it was before it was sealed. Raises ``Unreadable``."""
    if not _is_sealed(value):
        return value
    key, token = value[SEALED_MEMBER]
    return json.loads(_open(key, token.encode()))


def _is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and SEALED_MEMBER in value


# Keys


def _open(key: str, token: bytes) -> bytes:
    try:
        box = _keys().boxes.get(key)
    except ImproperlyConfigured as error:
        raise Unreadable(str(error)) from error
    if box is None:
        raise Unreadable(
            f"It was encrypted by the key {key}, which is not in IDEMPOTENCY['ENCRYPTION_KEYS']. "
            "Add that key at the end of the list."
        )
    from cryptography.fernet import InvalidToken

    try:
        return box.decrypt(token)
    except InvalidToken:
        raise Unreadable(f"The key {key} does not open it: it was changed.") from None


@cache
def _keys() -> _Keys:
    configured = settings().encryption_keys
    boxes = dict(_box(number, key) for number, key in enumerate(configured, 1) if key is not None)
    in_clear = not configured or configured[0] is None
    return _Keys(None if in_clear else next(iter(boxes)), boxes)


def _box(number: int, key: str | bytes) -> tuple[str, Fernet]:
    """A key, under an id that tells nothing of it."""
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise ImproperlyConfigured(
            "IDEMPOTENCY['ENCRYPTION_KEYS'] needs cryptography: "
            'pip install "django-idempotency[encryption]".'
        ) from error
    try:
        box, raw = Fernet(key), base64.urlsafe_b64decode(key)
    except ValueError:
        # Whatever is wrong with it, it is not shown: it may be a key all the same.
        raise ImproperlyConfigured(
            f"Key {number} of IDEMPOTENCY['ENCRYPTION_KEYS'] is no Fernet key: 32 bytes in "
            "URL-safe base64, as Fernet.generate_key() makes them."
        ) from None
    return hashlib.sha256(_KEY_DOMAIN + raw).hexdigest()[:8], box


@receiver(setting_changed)
def _reload(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        _keys.cache_clear()
