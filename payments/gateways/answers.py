"""What an answer of the gateway says about the money. Pure: no network, no clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown

#: The gateway ran the request and said no, or read it and will never accept it.
_REFUSALS = {400, 402, 422}
#: A repeat with the same key may end otherwise. 409: a request with this key is running.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
#: The key holds another request's outcome: this answer says nothing about that one.
_KEY_REUSED = "idempotency_key_reused"


@dataclass(frozen=True)
class Answer:
    """How one attempt ended."""

    outcome: Outcome
    #: Whether a repeat with the same key may end otherwise.
    passing: bool = False
    #: Seconds the gateway asks to wait before a repeat; None: it does not ask.
    retry_after: float | None = None


def classify(status: int, body: bytes, retry_after: float | None = None) -> Answer:
    """Read one HTTP answer. What cannot be understood is unknown, never a refusal.

    ``retry_after``: the header of that name in seconds; None where there is none to be read.
    """
    content = json_object(body)
    if 200 <= status < 300 and _is_id(content.get("id")):
        return Answer(Done(content))
    error = content.get("error")
    if not isinstance(error, dict):
        error = {}
    if status in _REFUSALS and isinstance(error.get("code"), str):
        if error["code"] == _KEY_REUSED:
            return Answer(Unknown("the gateway holds another request under this key"))
        message = str(error.get("message", ""))
        return Answer(Refused({"status": status, "code": error["code"], "message": message}))
    # A success or a refusal that cannot be read is a damaged answer: asking again may mend it.
    passing = status in _PASSING or status in _REFUSALS or 200 <= status < 300
    if error.get("processed") is False:
        reason = f"the gateway answered {status}, nothing processed"
        return Answer(NotSent(reason, retry_after), passing, retry_after)
    return Answer(Unknown(f"the gateway answered {status}"), passing, retry_after)


def _is_id(value: object) -> bool:
    """Whether it can be kept: what cannot is a damaged answer."""
    return isinstance(value, str) and 0 < len(value) <= 255 and "\0" not in value


def json_object(body: bytes) -> dict[str, Any]:
    """What a body says; empty where it is no JSON object."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
