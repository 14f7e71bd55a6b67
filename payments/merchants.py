"""Merchants and their API keys."""

import hashlib
import secrets
import string

from django.utils import timezone

from payments.models import ApiKey, Merchant

_ALPHABET = string.digits + string.ascii_letters
_SECRET_LENGTH = 32
_SHOWN = 10


def issue_api_key(*, merchant: Merchant, secret: str | None = None) -> tuple[ApiKey, str]:
    """A new key and its secret; the secret cannot be read again later.

    Only the demo passes a `secret` of its own.
    """
    if secret is None:
        secret = "sk_live_" + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    key = ApiKey.objects.create(merchant=merchant, prefix=secret[:_SHOWN], digest=digest(secret))
    return key, secret


def revoke_api_key(*, key: ApiKey) -> bool:
    """From the next request on the secret is refused. False: it was already."""
    active = ApiKey.objects.filter(pk=key.pk, revoked=None)
    return bool(active.update(revoked=timezone.now()))


def active_api_key(*, secret: str) -> ApiKey | None:
    """The key with this secret, with its merchant; None if there is none or it was revoked.

    The lookup is by digest, so its time says nothing about how much of a guess was right.
    """
    keys = ApiKey.objects.select_related("merchant")
    return keys.filter(digest=digest(secret), revoked=None).first()


def digest(secret: str) -> str:
    # Secrets are long and random, so a fast hash is enough: there is nothing to guess from.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
