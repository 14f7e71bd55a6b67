"""The gateway's side of its events: signed when they are sent, as often and as late as it likes."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.test import Client
from standardwebhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATH = "/v1/gateway-events"


class Event:
    """One event: its id and its bytes stay, its signature is made when it is sent."""

    def __init__(self, kind: str, data: dict[str, Any], *, event_id: str | None = None) -> None:
        self.id = event_id or f"evt_{uuid.uuid4().hex}"
        self.body = json.dumps({"type": kind, "data": data})

    def headers(self, *, age: float = 0, secret: str = SECRET) -> dict[str, str]:
        """Signed so many seconds ago."""
        moment = datetime.now(UTC) - timedelta(seconds=age)
        return {
            "webhook-id": self.id,
            "webhook-timestamp": str(int(moment.timestamp())),
            "webhook-signature": Webhook(secret).sign(self.id, moment, self.body),
        }

    def send(self, *, headers: dict[str, str] | None = None, body: str | None = None) -> Any:
        """POST it; signed now unless `headers` say otherwise."""
        return Client(raise_request_exception=False).generic(
            "POST",
            PATH,
            self.body if body is None else body,
            "application/json",
            headers=headers or self.headers(),
        )


def ended(kind: str, entry: dict[str, Any], **changes: Any) -> Event:
    """The event about an entry of the gateway's ledger."""
    return Event(f"{kind}.{entry['status']}", entry | changes)
