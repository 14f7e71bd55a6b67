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

from django.dispatch import receiver

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


@receiver(signals.key_claimed)
def _claimed(*, takeover: bool, reused: bool, attempt: int, **told: Any) -> None:
    level = WARNING if takeover else INFO
    old = State.PROCESSING if takeover else State.FAILED if attempt > 1 else NONE
    transition = "taken over" if takeover else "reused" if reused else "claimed"
    _write(level, transition, old, State.PROCESSING, attempt=attempt, **told)


@receiver(signals.key_completed)
def _completed(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(INFO, "completed", was, State.SUCCEEDED, **told)


@receiver(signals.key_released)
def _released(**told: Any) -> None:
    _write(INFO, "released", State.PROCESSING, NONE, **told)


@receiver(signals.key_failed)
def _failed(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(WARNING, "failed", was, State.FAILED, **told)


@receiver(signals.key_suspended)
def _suspended(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(WARNING, "suspended", was, State.PROCESSING, **told)


@receiver(signals.key_in_doubt)
def _in_doubt(*, was: str = State.PROCESSING, **told: Any) -> None:
    _write(ERROR, "in doubt", was, State.IN_DOUBT, **told)


@receiver(signals.key_reclaimed)
def _reclaimed(**told: Any) -> None:
    _write(WARNING, "reclaimed", State.PROCESSING, State.FAILED, **told)


@receiver(signals.key_force_failed)
def _force_failed(*, was: str, now: str, **told: Any) -> None:
    _write(WARNING, "force-failed", was, now, **told)


@receiver(signals.key_replayed)
def _replayed(**told: Any) -> None:
    _write(DEBUG, "replayed", State.SUCCEEDED, State.SUCCEEDED, **told)


@receiver(signals.key_rejected)
def _rejected(**told: Any) -> None:
    _write(DEBUG, "rejected", UNCHANGED, UNCHANGED, **told)
