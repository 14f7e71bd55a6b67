"""Settling an operation once somebody finds out what became of its call: the job, or a person.

::

    take over   one write: the key stands as it was seen; whoever held it is fenced off
    settle      one transaction: finalize or withdraw, the key's end, and who said so

The first is committed before the second begins. A live worker that is finalizing meanwhile then
finds its lease lost and rolls back; did the two wait for each other's rows, it would be a deadlock.
A crash between them leaves the operation at its recovery point, for the job to resume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction

from idempotency import partitions, signals
from idempotency.conf import settings
from idempotency.core.decisions import Lease
from idempotency.core.errors import LeaseLost
from idempotency.core.keys import log_digest
from idempotency.core.states import State
from idempotency.definitions import Done, NotSent, Refused
from idempotency.kept import Kept
from idempotency.models import IdempotencyKey
from idempotency.operations import announce
from idempotency.stores.base import Seen, Store
from idempotency.stores.sessions import replace_if_broken
from idempotency.stores.transactions import Transaction

logger = logging.getLogger("idempotency")

#: What somebody may find out. That nobody knows settles nothing.
Finding = Done | Refused | NotSent

_WORDS = {Done: "done", Refused: "refused", NotSent: "not_sent"}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Who settles an operation, and on what grounds: the story of the key tells it."""

    actor: str
    reason: str
    data: Mapping[str, Any] = field(default_factory=dict)
    #: More to be written in the transaction that settles; what it raises undoes that.
    also: Callable[[], None] | None = None


def settle(store: Store, key_id: int, seen: Seen, finding: Finding, resolution: Resolution) -> bool:
    """End an operation as it was found to have ended.

    ``Done`` and ``Refused`` go through ``finalize``, and every retry gets that answer. ``NotSent``
    withdraws the intent and frees the key for its own request; that needs a key nobody holds,
    because whoever does may be making the call.

    False, and nothing written, when the key does not stand as it was seen any more. What
    ``finalize`` or ``withdraw`` raises is raised here, and the operation is as open as before.
    """
    kept = _kept_as_seen(store, key_id, seen)
    if kept is None:
        return False
    idle = isinstance(finding, NotSent)
    lease = store.take_over_seen(key_id, seen, settings().lease, idle=idle)
    if lease is None:
        return False
    connection = connections[store.using]
    try:
        partitions.ensure_day(connection, lease.response_day)
        with Transaction(connection, f"settling {kept.operation.name}", durable=False):
            told = _end(store, lease, kept, finding)
            _tell_story(store, lease, seen, resolution, _WORDS[type(finding)])
    except LeaseLost:
        return False
    except Exception as error:
        ours = _put_back(store, lease, seen, f"{type(error).__name__} when it was settled")
        if ours or isinstance(error, (DatabaseError, InterfaceError)):
            raise
        # Somebody took over and was faster, so this step found its intent done: no defect.
        return False
    ended = signals.key_failed if idle else signals.key_completed
    announce(ended, lease, was=seen.state, actor=resolution.actor, **told)
    return True


def let_resume(store: Store, key_id: int, seen: Seen, resolution: Resolution) -> bool:
    """End a doubt by leaving the operation to the job that resumes it, which makes the call again.

    False, and nothing written, when the key does not stand as it was seen any more.
    """
    with transaction.atomic(using=store.using):
        # One transaction, and not two as in ``settle``: whoever had it is not at it any more.
        lease = store.take_over_seen(key_id, seen, settings().lease, idle=True, anew=True)
        if lease is None:
            return False
        store.suspend(lease, resolution.reason)
        _tell_story(store, lease, seen, resolution, "resumed")
    told = {"reason": resolution.reason, "actor": resolution.actor}
    announce(signals.key_suspended, lease, was=seen.state, **told)
    return True


def _kept_as_seen(store: Store, key_id: int, seen: Seen) -> Kept | None:
    """What the operation keeps. It cannot change while the key stands as it was seen."""
    keys = IdempotencyKey.objects.using(store.using).exclude(recovery_point="")
    standing = keys.filter(
        pk=key_id, owner=seen.owner, state=seen.state, recovery_point=seen.recovery_point
    )
    context = standing.values_list("context", flat=True).first()
    return None if context is None else Kept.read(context)


def _end(store: Store, lease: Lease, kept: Kept, finding: Finding) -> dict[str, Any]:
    """Write the end of the operation and of its key; what the signal tells of it."""
    if isinstance(finding, NotSent):
        kept.operation.withdraw(kept.context)
        store.fail(lease, finding.reason, kept.ttl, forget_recovery=True)
        return {"reason": finding.reason}
    recorded = kept.finalize(finding)
    if store.complete(lease, recorded.within(kept.limit), kept.ttl) != lease.response_day:
        partitions.forget_day(connections[store.using], lease.response_day)
    return {"status": recorded.status}


def _tell_story(store: Store, lease: Lease, seen: Seen, resolution: Resolution, how: str) -> None:
    data = {"from": str(seen.owner), "was": seen.state, "outcome": how, **resolution.data}
    store.resolved(lease, actor=resolution.actor, reason=resolution.reason, data=data)
    if resolution.also is not None:
        resolution.also()


def _put_back(store: Store, lease: Lease, seen: Seen, reason: str) -> bool:
    """Leave the operation as open as it was found. False: it is not ours any more."""
    replace_if_broken(store.using)
    try:
        if seen.state == State.IN_DOUBT:
            store.doubt(lease, reason)
        else:
            store.suspend(lease, reason)
    except LeaseLost:
        return False
    except (DatabaseError, InterfaceError):
        # Our lease runs out, and the job that resumes comes to the same doubt.
        digest = log_digest(lease.digest)
        logger.warning("could not put %s back", digest, exc_info=True)
    return True
