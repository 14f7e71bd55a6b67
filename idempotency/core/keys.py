"""Idempotency keys: how they are spelt, what they are unique within, what is derived from them.

The client half imports this module, so it needs neither Django nor a database. A key is a secret
of its caller: no error message, ``repr`` or log line made here contains one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import http_sf

from idempotency.core.errors import KeyInvalid

__all__ = [
    "HEADER",
    "MAX_LENGTH",
    "Scope",
    "derive_downstream_key",
    "length_prefixed",
    "log_digest",
    "parse_body_field",
    "parse_header",
]

HEADER = "Idempotency-Key"
#: Characters in a key, after unquoting.
MAX_LENGTH = 255

_SCOPE_DOMAIN = b"idempotency/scope/1"
_DOWNSTREAM_DOMAIN = b"idempotency/downstream-key/1"

_OWS = " \t"
_OUTSIDE_VISIBLE_ASCII = re.compile(r"[^\x21-\x7e]")
_ONLY_IN_QUOTES = re.compile(r'["\\;]')
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def parse_header(value: str, *, min_length: int = 1, uuid_only: bool = False) -> str:
    """Return the key that an ``Idempotency-Key`` header spells.

    Two spellings of one key are read: the structured-field string of the draft (``"8e03"``, whose
    parameters are ignored) and the bare form that most vendors document (``8e03``). Blanks around
    the value do not count.

    ``min_length`` (characters) and ``uuid_only`` (8-4-4-4-12 hexadecimal digits) are a policy's
    stricter demands. Raises ``KeyInvalid`` for everything else; servers join two header lines with
    a comma, so a list is refused as well.
    """
    value = value.strip(_OWS)
    key = _unquote(value) if value.startswith('"') else _bare(value)
    return _checked(key, min_length, uuid_only)


def parse_body_field(value: object, *, min_length: int = 1, uuid_only: bool = False) -> str:
    """Return the key that a field of the body holds: the string as it is, with no quoting.

    ``value`` is what the body's parser made of the field. Raises ``KeyInvalid`` where it is not a
    string or not a key; the demands are those of ``parse_header``.
    """
    if not isinstance(value, str):
        raise KeyInvalid("The idempotency key in the body must be a string.")
    return _checked(value, min_length, uuid_only)


def _unquote(value: str) -> str:
    try:
        item = http_sf.parse(value.encode("ascii"), tltype="item")
    except ValueError:
        # "from None": the parser's message quotes the key.
        raise KeyInvalid(
            f"{HEADER} is not one quoted string. Send the header once, close the quote, escape "
            r"only \" and \\, and use visible ASCII."
        ) from None
    # What starts with a double quote is parsed as a string or not at all (RFC 9651, 4.2.3.1).
    key, _parameters = cast("tuple[str, object]", item)
    return key


def _bare(value: str) -> str:
    if "," in value:
        raise KeyInvalid(f"{HEADER} holds a list. Send the header once, with one key.")
    if _ONLY_IN_QUOTES.search(value):
        raise KeyInvalid(
            f"{HEADER} contains a quote, backslash or semicolon. Put the key in double quotes."
        )
    return value


def _checked(key: str, min_length: int, uuid_only: bool) -> str:
    if not key:
        raise KeyInvalid("The idempotency key is empty. Send a new UUID for each operation.")
    if len(key) > MAX_LENGTH:
        raise KeyInvalid(f"The idempotency key is too long. Send at most {MAX_LENGTH} characters.")
    if _OUTSIDE_VISIBLE_ASCII.search(key):
        raise KeyInvalid(
            "The idempotency key may hold visible ASCII characters only: no blanks, control "
            "characters or accents."
        )
    if len(key) < min_length:
        raise KeyInvalid(
            f"The idempotency key is too short. Send at least {min_length} characters."
        )
    if uuid_only and not _UUID.fullmatch(key):
        raise KeyInvalid("The idempotency key must be a UUID, in its form with four hyphens.")
    return key


#: A parameter of a route: ``{charge_id}``.
_PARAMETER = re.compile(r"\{[^{}/]*\}")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key is unique within. The same key in another scope is another key.

    ``route`` is method and URL pattern, whatever its parameters are called; ``tenant`` the
    authenticated account. With ``per_route``
    off the route is kept for display but does not tell keys apart, so that one key used at two
    endpoints is one key.
    """

    route: str
    tenant: str
    key: str = field(repr=False)
    per_route: bool = True
    #: SHA-256 (32 bytes) of the scope: the unique column of the key table.
    digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        route = nameless(self.route) if self.per_route else ""
        message = length_prefixed(_SCOPE_DOMAIN, _utf8(route), _utf8(self.tenant), _utf8(self.key))
        object.__setattr__(self, "digest", hashlib.sha256(message).digest())


@lru_cache(maxsize=1024)
def nameless(route: str) -> str:
    """A route without the names of its parameters: one that is renamed between a request and its
    retry makes no other route of it."""
    return _PARAMETER.sub("{}", route)


def derive_downstream_key(
    secret: bytes, key_id: int | str, service: str, operation: str, step: str
) -> str:
    """Return the key to send to ``service``: the same on every attempt, unguessable for others.

    ::

        hex(HMAC-SHA256(secret, P(domain) P(key_id) P(service) P(operation) P(step)))
        P(x) = length of x as 8 bytes, big-endian, then x in UTF-8
        domain = "idempotency/downstream-key/1"

    64 lower-case hexadecimal digits. ``key_id`` is the id of our own record, not the client's key:
    a key reused after it expired gets a new record, and so a new downstream key. Another secret
    makes another key.
    """
    if not secret:
        raise ValueError("The secret for downstream keys must not be empty.")
    parts = (_utf8(str(key_id)), _utf8(service), _utf8(operation), _utf8(step))
    message = length_prefixed(_DOWNSTREAM_DOMAIN, *parts)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def log_digest(digest: bytes) -> str:
    """Return what logs show in place of a key: the first 12 hexadecimal digits of its digest."""
    return digest[:6].hex()


def length_prefixed(*parts: bytes) -> bytes:
    """Join parts so that no two different sequences of them give the same bytes.

    Each part follows its own length (8 bytes, big-endian): moving a byte over a boundary changes
    a length.
    """
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "big"), part)])


def _utf8(text: str) -> bytes:
    # A lone surrogate in a tenant's or a route's name must not turn a request into a 500.
    return text.encode("utf-8", "surrogatepass")
