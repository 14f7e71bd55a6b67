"""One structured line for each transition of a key, in the logger ``idempotency.transitions``.

Its fields, as ``extra``: ``transition``, ``key`` (the first twelve digits of its digest, as every
log line and span shows it), ``route``, ``tenant``, ``owner``, ``attempt``, ``from``, ``to``,
``request_id`` where there is one, and what the transition adds (``status``, ``reason``, ``code``,
``actor``). ``none`` is a key that is not there, ``unchanged`` whatever it was.

INFO for what every request does, WARNING for what should not be needed, ERROR for what needs a
person. A replay and a refusal change nothing and are DEBUG; metrics count them.
"""

from __future__ import annotations

import logging
from typing import Any

from idempotency import propagation, signals
from idempotency.core.keys import log_digest
from idempotency.core.states import State

logger = logging.getLogger("idempotency.transitions")

NONE, UNCHANGED = "none", "unchanged"
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

#: What a signal may say besides whose key it is.
_TOLD = ("status", "reason", "code", "actor")


def _write(level: int, transition: str, old: str, new: str, *, digest: bytes, **told: Any) -> None:
    if not logger.isEnabledFor(level):
        return
    fields = {
        "transition": transition,
        "key": log_digest(digest),
        "route": told["route"],
        "tenant": told["tenant"],
        "from": str(old),
        "to": str(new),
    }
    if "owner" in told:
        fields |= {"owner": str(told["owner"]), "attempt": told["attempt"]}
    if request_id := propagation.current_request_id():
        fields["request_id"] = request_id
    fields |= {name: told[name] for name in _TOLD if name in told}
    text = "key %(key)s %(transition)s: %(from)s to %(to)s, %(route)s"
    logger.log(level, text, fields, extra=fields)


@signals.key_claimed.heard
def _claimed(*, takeover: bool, reused: bool, attempt: int, **told: Any) -> None:
    level = WARNING if takeover else INFO
    old = State.PROCESSING if takeover else State.FAILED if attempt > 1 else NONE
    transition = "taken over" if takeover else "reused" if reused else "claimed"
    _write(level, transition, old, State.PROCESSING, attempt=attempt, **told)


@signals.key_completed.heard
def _completed(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(INFO, "completed", was, State.SUCCEEDED, **told)


@signals.key_released.heard
def _released(**told: Any) -> None:
    _write(INFO, "released", State.PROCESSING, NONE, **told)


@signals.key_failed.heard
def _failed(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(WARNING, "failed", was, State.FAILED, **told)


@signals.key_suspended.heard
def _suspended(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(WARNING, "suspended", was, State.PROCESSING, **told)


@signals.key_in_doubt.heard
def _in_doubt(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(ERROR, "in doubt", was, State.IN_DOUBT, **told)


@signals.key_reclaimed.heard
def _reclaimed(**told: Any) -> None:
    _write(WARNING, "reclaimed", State.PROCESSING, State.FAILED, **told)


@signals.key_force_failed.heard
def _force_failed(*, was: str, now: str, **told: Any) -> None:
    _write(WARNING, "force-failed", was, now, **told)


@signals.key_replayed.heard
def _replayed(**told: Any) -> None:
    _write(DEBUG, "replayed", State.SUCCEEDED, State.SUCCEEDED, **told)


@signals.key_rejected.heard
def _rejected(**told: Any) -> None:
    _write(DEBUG, "rejected", UNCHANGED, UNCHANGED, **told)
