"""An operation as it was left at its recovery point, and what can be done from there."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from idempotency import encryption, spans
from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.keys import derive_downstream_key
from idempotency.core.policies import Policy
from idempotency.core.responses import RecordedResponse
from idempotency.definitions import Done, Operation, Outcome, Refused, Unknown, find_known

logger = logging.getLogger("idempotency")


def envelope(operation: Operation, context: Any, policy: Policy, lease: Lease) -> dict[str, Any]:
    """What is kept at the recovery point: enough to continue without the request and its policy.

    The downstream key is in it, so that a ``SECRET`` that changes meanwhile changes no open call.
    It depends on the attempt that prepared: an intent that was withdrawn, because its call was
    certainly not sent, and prepared anew is another intent. Its call may differ, and the other side
    would refuse it under the key of the first.
    """
    if not isinstance(context, dict):
        raise TypeError(f"prepare of {operation.name} returned {type(context).__name__}, no dict.")
    return {
        "operation": operation.name,
        "ttl": policy.ttl.total_seconds(),
        "limit": policy.max_response_bytes,
        "prepared": lease.attempt,
        "key": downstream_key(lease.key_id, operation, lease.attempt),
        # Through JSON and back, so that the first call sees what a resumed one would.
        "context": encryption.seal_json(json.loads(json.dumps(context))),
    }


def context_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What ``prepare`` returned, of an ``envelope``. Raises ``encryption.Unreadable``."""
    context: dict[str, Any] = encryption.open_json(kept["context"])
    return context


def age_of(key: Any, now: datetime) -> timedelta:
    """How long ago an operation passed its recovery point, by its row."""
    age: timedelta = now - (key.recovery_point_at or key.created_at)
    return age


def is_repeatable(operation: Operation | type[Operation], age: timedelta) -> bool:
    """Whether an operation's call can be made again, ``age`` after its recovery point.

    A lease is how long a call may take: one that begins in time also arrives in time.
    """
    window = operation.downstream_dedupes_for
    remembered = window is None or age + settings().lease < window
    return operation.downstream_dedupes and remembered


@dataclass(frozen=True, slots=True)
class Kept:
    """An operation as it was left at its recovery point."""

    operation: Operation
    context: dict[str, Any]
    #: The same on every attempt of this intent.
    key: str
    ttl: timedelta
    limit: int

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Kept:
        """Read it from the row's context, an ``envelope``. Raises ImproperlyConfigured when this
        process does not know the operation, or (``encryption.Unreadable``) not its key."""
        operation = find_known(kept["operation"])()
        ttl = timedelta(seconds=kept["ttl"])
        return cls(operation, context_of(kept), kept["key"], ttl, kept["limit"])

    def is_repeatable(self, age: timedelta) -> bool:
        """Whether the call can be made again, ``age`` after the recovery point."""
        return is_repeatable(self.operation, age)

    def arrives_for(self, age: timedelta, rested: timedelta = timedelta(0)) -> timedelta:
        """How much longer a call may still arrive: ``age`` after the recovery point, and ``rested``
        at least after the end of the last attempt. Zero or less: none does.

        Without dedupe only the first attempt makes the call, right after the recovery point; with a
        window, those within it; and where it can always be repeated, every one.
        """
        since = age
        if self.operation.downstream_dedupes:
            window = self.operation.downstream_dedupes_for
            since = rested if window is None else age - window
        return settings().reconcile_withdraw_after - since

    @spans.traced("idempotency.call", lambda kept: {"idempotency.operation": kept.operation.name})
    def call(self) -> Outcome:
        """Make the call."""
        return attempt(self.operation, "call", self.context, self.key)

    def look_up(self) -> Outcome:
        """Ask what became of it."""
        return attempt(self.operation, "look_up", self.context, self.key)

    def finalize(self, outcome: Done | Refused) -> RecordedResponse:
        """Write the result, inside the transaction that completes the key; the answer to keep."""
        return finalize(self.operation, self.context, outcome)


def downstream_key(key_id: int, operation: Operation, prepared: int) -> str:
    """The key of an operation's call, on every attempt at the intent that the attempt ``prepared``
    wrote. Made with the present ``SECRET``: of a call that is open, ``Kept.key`` is the one."""
    step = f"call {prepared}"
    secret = settings().secret_bytes
    return derive_downstream_key(secret, key_id, operation.service, operation.name, step)


def finalize(
    operation: Operation, context: dict[str, Any], outcome: Done | Refused
) -> RecordedResponse:
    """Write the result of an operation's call; the answer to keep."""
    reply = operation.finalize(context, outcome)
    if reply.status >= 500:
        raise ValueError(f"finalize answered {reply.status}, which cannot be an outcome.")
    return reply.record()


def attempt(operation: Operation, step: str, context: dict[str, Any], key: str) -> Outcome:
    """Take the step ``call`` or ``look_up``; whatever it raises is an outcome too."""
    try:
        outcome: object = getattr(operation, step)(context, key)
    except Exception as error:
        # Whatever it was, the call may have gone out before it: that is what Unknown means.
        logger.exception("the %s of %s raised", step, operation.name)
        return Unknown(f"{type(error).__name__} in the {step}")
    if not isinstance(outcome, Outcome):
        logger.error("the %s of %s returned %s, no outcome", step, operation.name, type(outcome))
        return Unknown(f"the {step} returned {type(outcome).__name__}")
    return outcome
