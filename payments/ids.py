"""Public ids: a prefix that says what it names, then 143 random bits.

They come from the operating system's random source, so an id cannot be guessed from another one,
and they say nothing about how many charges there are.
"""

import re
import secrets
import string

ALPHABET = string.digits + string.ascii_letters
LENGTH = 24


def new_id(prefix: str) -> str:
    return f"{prefix}_" + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def pattern(prefix: str) -> "re.Pattern[str]":
    """What an id with this prefix looks like, for validation and for the OpenAPI document."""
    return re.compile(rf"\A{prefix}_[0-9A-Za-z]{{{LENGTH}}}\Z")
