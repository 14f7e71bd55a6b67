r"""What nobody is shown, whoever may see bodies: members of stored JSON, and headers, by name.

>>> from idempotency.masking import Mask
>>> Mask().text('{"id": "ch_1", "card": {"number": "4242424242424242", "last4": "4242"}}')
'{"id": "ch_1", "card": {"number": "[hidden]", "last4": "4242"}}'

The one list for the admin, the commands and the logs: ``FIELDS``, and what ``MASKED_FIELDS`` adds
to it. A name is hidden when the words of an entry follow one another in it, or in it and the names
of the objects around it: ``card_number`` hides ``cardNumber``, ``old-card-number`` and the
``number`` of a ``card``. What is not JSON has no names, and is not masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from idempotency.conf import settings

__all__ = ["FIELDS", "HIDDEN", "Mask", "mask"]

HIDDEN = "[hidden]"

FIELDS = (
    "authorization",
    "authenticate",
    "authentication",
    "cookie",
    "credential",
    "credentials",
    "token",
    "tokens",
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "signature",
    "api_key",
    "private_key",
    "card_number",
    "pan",
    "cvc",
    "cvv",
    "security_code",
    "pin",
    "iban",
    "account_number",
)

#: A name in its words: ``APIKey2`` is API, Key and 2.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+")
# A string (one without an end goes to the end of the text), a bracket, a comma, a colon, or
# anything else in one run.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)

_OPENING, _CLOSING = ("{", "["), ("}", "]")

Words = tuple[str, ...]


class Mask:
    """Hides what the list names, and ``fields``."""

    def __init__(self, fields: Iterable[str] = ()) -> None:
        entries = {_words(str(field)) for field in (*FIELDS, *fields)}
        # As one word too: cardnumber.
        self._entries = {entry for entry in entries | {("".join(it),) for it in entries} if entry}
        self._longest = max(map(len, self._entries))
        self._known = frozenset(word for entry in self._entries for word in entry)

    def hides(self, name: str) -> bool:
        """Whether what has this name is hidden."""
        return self._hides(_words(name))

    def text(self, text: str) -> str:
        """JSON without the values of the members that are hidden; every other character stays as
        it was. Text that is no JSON, or was cut, is read as far as it looks like it."""
        tokens = list(_JSON_TOKEN.finditer(text))
        kept: list[str] = []
        done = 0
        for first, last in self._hidden_values([token[0] for token in tokens]):
            kept += text[done : tokens[first].start()], json.dumps(HIDDEN)
            done = tokens[last].end()
        return "".join([*kept, text[done:]])

    def _hides(self, words: Words) -> bool:
        return not self._known.isdisjoint(words) and any(
            words[start : start + length] in self._entries
            for start in range(len(words))
            for length in range(1, self._longest + 1)
        )

    def _hidden_values(self, tokens: list[str]) -> Iterator[tuple[int, int]]:
        """The first and the last token of each value that is hidden."""
        around: list[Words] = [()]
        name, at = around[-1], 0
        while at < len(tokens):
            token = tokens[at]
            if token in _OPENING:
                # An entry has no more words than the longest, and one of them is the member's own.
                around.append(name[1 - self._longest :])
            elif token in _CLOSING and len(around) > 1:
                around.pop()
            elif token[0] == '"' and tokens[at + 1 : at + 2] == [":"]:
                name = around[-1] + _words(_unquoted(token))
                at += 2
                if not self._hides(name) or not _begins_value(tokens[at : at + 1]):
                    continue  # with its value, which an object's members bear the name of too
                last = _end_of_value(tokens, at)
                yield at, last
                at = last
            name = around[-1]
            at += 1


def mask() -> Mask:
    """The mask in force. While the settings are read, or cannot be, it is the built-in one: a log
    line may come at any time."""
    fields: tuple[str, ...] = ()
    if django_settings.configured:
        with suppress(ImproperlyConfigured):
            fields = settings().masked_fields
    return _mask(fields)


@cache
def _mask(fields: tuple[str, ...]) -> Mask:
    return Mask(fields)


def _words(name: str) -> Words:
    return tuple(word.casefold() for word in _WORD.findall(name))


def _unquoted(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token


def _begins_value(token: list[str]) -> bool:
    return bool(token) and token[0] not in (*_CLOSING, ",", ":")


def _end_of_value(tokens: list[str], first: int) -> int:
    """The last token of the value that begins with ``first``."""
    depth = 0
    for at in range(first, len(tokens)):
        depth += (tokens[at] in _OPENING) - (tokens[at] in _CLOSING)
        if depth <= 0:
            return at
    return len(tokens) - 1
