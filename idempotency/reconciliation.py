"""The job that asks the other side about operations whose outcome nobody knows, and settles them.

It asks about what passed its recovery point ``RECONCILE_AFTER`` ago and that nobody is at: what is
IN_DOUBT, or PROCESSING with its lease over.

=====================  ===========================================================================
the other side         what follows
=====================  ===========================================================================
did it, or refused     settled like that
has nothing of it,     left to ``resume_operations``, which makes the call again
and would dedupe
has nothing of it,     asked again, because the call may still be on its way; after
and would not          ``RECONCILE_WITHDRAW_AFTER`` withdrawn, and the key is free
does not say           asked again, ever more rarely
=====================  ===========================================================================

An error is logged, once for an operation, when it is still open after ``RECONCILE_ALERT_AFTER``.

What somebody holds the lease of is left to him. Between asking and settling nothing is locked: only
what stands as it was read is settled, so whoever was faster, person or job, is not overruled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from django.db import InterfaceError, OperationalError

from idempotency import settlement_metrics, settling
from idempotency.conf import settings
from idempotency.core.keys import log_digest
from idempotency.core.states import State
from idempotency.definitions import Done, NotSent, Outcome, Refused
from idempotency.jobs import Result, Run, reachable, run_job
from idempotency.kept import Kept
from idempotency.settling import Finding, Resolution
from idempotency.stores.base import Store, Unsettled

logger = logging.getLogger("idempotency")

JOB = "reconcile_operations"
#: The next question comes after this part of an operation's age, and never later than ``LONGEST``.
PART, LONGEST = 1 / 8, timedelta(minutes=15)


def reconcile_operations(using: str | None = None) -> Result:
    """Ask about every operation that is due, and settle those whose outcome is known then.

    One that fails does not keep the next from being asked about.
    """
    return run_job(JOB, _reconcile, using)


def _reconcile(run: Run) -> None:
    chosen = settings()
    asked: set[int] = set()
    for _ in run.batches():
        due = run.store.unsettled_operations(after=chosen.reconcile_after, limit=chosen.batch_size)
        # Whatever comes back at once is asked about once a run.
        batch = [unsettled for unsettled in due if unsettled.key_id not in asked]
        if not batch:
            break
        for unsettled in batch:
            if run.out_of_time:
                break
            asked.add(unsettled.key_id)
            _reconcile_one(run, unsettled)
    if asked:
        run.details.append(f"{len(asked)} asked about, {len(asked) - run.done} still open")
    overdue = run.store.count_unsettled(after=chosen.reconcile_alert_after)
    settlement_metrics.show_overdue(overdue)
    if overdue:
        run.details.append(f"{overdue} open for longer than {chosen.reconcile_alert_after}")


def _reconcile_one(run: Run, unsettled: Unsettled) -> None:
    operation = str(unsettled.context.get("operation"))
    try:
        kept = Kept.read(unsettled.context)
        outcome = kept.look_up()
        ending = settle_as_answered(run.store, unsettled, kept, outcome)
    except Exception as error:
        if isinstance(error, (InterfaceError, OperationalError)) and not reachable(run.using):
            raise
        logger.exception("could not reconcile the operation of key %s", unsettled.key_id)
        run.failed += 1
        _ask_again(run.store, unsettled, operation, f"{type(error).__name__}")
        return
    if ending is not None:
        settlement_metrics.count(operation, ending)
        run.done += 1
    elif not isinstance(outcome, (Done, Refused)):
        _ask_again(run.store, unsettled, operation, outcome.reason)


def settle_as_answered(
    store: Store,
    unsettled: Unsettled,
    kept: Kept,
    outcome: Outcome,
    *,
    actor: str = JOB,
    because: str = "",
    also: Callable[[], None] | None = None,
) -> str | None:
    """Do what follows from the other side's answer: "done", "refused", "not_sent" or "resumed".
    None: nothing does yet, or somebody was faster.

    ``actor``: who asked, and ``because`` why; ``also``: see ``settling.Resolution``.
    """
    where = kept.operation.service or "the other side"

    def on(grounds: str) -> Resolution:
        return Resolution(actor, f"{because}: {grounds}" if because else grounds, also=also)

    key_id, seen = unsettled.key_id, unsettled.seen
    if isinstance(outcome, NotSent) and kept.is_repeatable(unsettled.age):
        # Out of doubt it is PROCESSING again, and that the resuming job comes back to by itself.
        reason = f"{where} has nothing of it and dedupes: the call is made again"
        freed = seen.state == State.IN_DOUBT and settling.let_resume(
            store, key_id, seen, on(reason)
        )
        return "resumed" if freed else None
    finding = _finding(kept, outcome, unsettled.age)
    if finding is None:
        return None
    ending, words = _ENDINGS[type(finding)]
    resolution = on(words.format(where=where, age=unsettled.age))
    return ending if settling.settle(store, key_id, seen, finding, resolution) else None


_ENDINGS: dict[type[Finding], tuple[str, str]] = {
    Done: ("done", "{where} was asked, and has done it"),
    Refused: ("refused", "{where} was asked, and has refused it"),
    NotSent: ("not_sent", "{where} was asked, and has nothing of it {age} after the call"),
}


def _finding(kept: Kept, outcome: Outcome, age: timedelta) -> Finding | None:
    """What an answer is worth. That there is nothing is worth something only once no call can
    arrive any more."""
    if isinstance(outcome, NotSent):
        return outcome if kept.arrives_for(age) <= timedelta(0) else None
    return outcome if isinstance(outcome, (Done, Refused)) else None


def _ask_again(store: Store, unsettled: Unsettled, operation: str, reason: str) -> None:
    """Put the next question off, and raise the alarm if this one was the first after its time."""
    age, alarm = unsettled.age, settings().reconcile_alert_after
    pause = min(age * PART, LONGEST)
    # Not beyond the time of the alarm: the question that comes then, or first after it, raises it.
    if age < alarm:
        pause = min(pause, alarm - age)
    if not store.look_up_again(unsettled, unsettled.now + pause):
        return
    due = unsettled.look_up_at or unsettled.recovery_point_at
    if age >= alarm >= due - unsettled.recovery_point_at:
        digest = log_digest(unsettled.digest)
        logger.error("%s %s is still open after %s: %s", operation, digest, age, reason)
        settlement_metrics.count(operation, "overdue")
