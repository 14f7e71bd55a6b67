"""Signed messages, in and out, by the Standard Webhooks scheme (standardwebhooks.com).

What is signed is ``id.timestamp.body``, with HMAC-SHA256 under a secret that both sides know. Three
headers carry it: ``webhook-id``, ``webhook-timestamp`` (seconds) and ``webhook-signature``.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from standardwebhooks import Webhook, WebhookVerificationError

from payments.exceptions import NotSigned

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

#: Bytes.
SHORTEST_SECRET = 24

_MESSAGE_ID = re.compile(r"\A[\x21-\x7e]{1,255}\Z")


def new_secret() -> str:
    """A secret for one endpoint: 256 random bits, as the scheme spells them."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def is_secret(text: str) -> bool:
    """Whether it is a secret of the scheme: base64 of at least 24 bytes. (The library takes what it
    can read of any text, and signs with the rest.)"""
    try:
        key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    return len(key) >= SHORTEST_SECRET


def sign(body: str, *, message_id: str, secret: str) -> dict[str, str]:
    """The headers for a message that is sent now. The id is the same each time it is sent; the time
    is not, because receivers refuse old ones."""
    now = datetime.now(UTC)
    return {
        ID: message_id,
        TIMESTAMP: str(int(now.timestamp())),
        SIGNATURE: Webhook(secret).sign(message_id, now, body),
    }


def verified_id(body: bytes, headers: Mapping[str, str], known: Iterable[str]) -> str:
    """The id of a message that one of the known secrets signed. Raises `NotSigned`.

    The body is the bytes as they came: another spelling of the same JSON is another message.
    """
    given = {name: headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE)}
    if not _MESSAGE_ID.match(given[ID]):
        raise NotSigned("webhook-id, webhook-timestamp and webhook-signature are needed.")
    reason = "No secret is configured here."
    for secret in known:
        try:
            Webhook(secret).verify(body, given, json_parse=False)
        except WebhookVerificationError as error:
            reason = f"{error}."
        except ValueError:  # neither text nor base64, or no comma in it
            reason = "The signature or the body cannot be read."
        else:
            return given[ID]
    raise NotSigned(reason)
