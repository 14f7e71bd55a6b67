"""Who calls, and what the OpenAPI document cannot say about keys, for schemathesis.

A good POST or PATCH has a key, in the header or in the body; in both it is the same one.
Without a body field it gets a fresh one here: two requests that share a key are a replay or a
mistake, and neither is news about the second. Requests that are meant to be bad stay as they are.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import schemathesis
from hypothesis import strategies as st


# No cache: each request needs a key of its own. It is set here and not in a hook, because
# schemathesis judges anew, and wrongly, what a hook has changed.
@schemathesis.auth(refresh_interval=None)
class Caller:
    def get(self, case: Any, context: Any) -> str:
        return os.environ.get("SCHEMATHESIS_API_KEY", "sk_test_acme")

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers["Authorization"] = f"Bearer {data}"
        # Any text may stand in them, and some of it asks for a 503 or a 504: test_retry_budget.py.
        for header in ("X-Request-Deadline-Ms", "X-Retry-Attempt"):
            case.headers.pop(header, None)
        good = case.meta is None or case.meta.generation.mode.is_positive
        if case.method in ("POST", "PATCH") and good:
            token = case.body.get("client_token") if isinstance(case.body, dict) else None
            case.headers["Idempotency-Key"] = _quoted(token or uuid.uuid4().hex)


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_text = st.text(st.characters(min_codepoint=1, codec="ascii"))
_scalars = st.none() | st.booleans() | st.integers() | _text
schemathesis.openapi.format("json-object", st.dictionaries(_text, _scalars).map(json.dumps))


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Let a transfer go to an account that exists, which no generator would guess."""
    account = os.environ.get("SCHEMATHESIS_ACCOUNT")
    made_up = isinstance(body, dict) and str(body.get("to", "")).startswith("acct_")
    return {**body, "to": account} if account and made_up else body
