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

from idempotency import propagation, signals
from idempotency.core.keys import log_digest
from idempotency.core.states import State
from idempotency.signals import Told

logger = logging.getLogger("idempotency.transitions")

NONE, UNCHANGED = "none", "unchanged"
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

#: What a signal may say besides whose key it is.
_TOLD = ("status", "reason", "code", "actor")


def _write(level: int, transition: str, old: str, new: str, told: Told) -> None:
    if not logger.isEnabledFor(level):
        return
    fields = {
        "transition": transition,
        "key": log_digest(told["digest"]),
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
def _claimed(told: Told) -> None:
    if told["takeover"]:
        _write(WARNING, "taken over", State.PROCESSING, State.PROCESSING, told)
        return
    old = State.FAILED if told["attempt"] > 1 else NONE
    _write(INFO, "reused" if told["reused"] else "claimed", old, State.PROCESSING, told)


@signals.key_completed.heard
def _completed(told: Told) -> None:
    _write(INFO, "completed", told.get("was", State.PROCESSING), State.SUCCEEDED, told)


@signals.key_released.heard
def _released(told: Told) -> None:
    _write(INFO, "released", State.PROCESSING, NONE, told)


@signals.key_failed.heard
def _failed(told: Told) -> None:
    _write(WARNING, "failed", told.get("was", State.PROCESSING), State.FAILED, told)


@signals.key_suspended.heard
def _suspended(told: Told) -> None:
    _write(WARNING, "suspended", told.get("was", State.PROCESSING), State.PROCESSING, told)


@signals.key_in_doubt.heard
def _in_doubt(told: Told) -> None:
    _write(ERROR, "in doubt", told.get("was", State.PROCESSING), State.IN_DOUBT, told)


@signals.key_reclaimed.heard
def _reclaimed(told: Told) -> None:
    _write(WARNING, "reclaimed", State.PROCESSING, State.FAILED, told)


@signals.key_force_failed.heard
def _force_failed(told: Told) -> None:
    _write(WARNING, "force-failed", told["was"], told["now"], told)


@signals.key_replayed.heard
def _replayed(told: Told) -> None:
    _write(DEBUG, "replayed", State.SUCCEEDED, State.SUCCEEDED, told)


@signals.key_rejected.heard
def _rejected(told: Told) -> None:
    _write(DEBUG, "rejected", UNCHANGED, UNCHANGED, told)
