"""The outbox's scheduled jobs, and the dispatcher as a process of its own."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q, QuerySet

from idempotency.conf import settings
from idempotency.jobs import Result, Run, run_job
from idempotency.models import DeliveryEvent, MessageState, OutboxMessage
from idempotency.outbox import channels, nudging
from idempotency.outbox.claims import claimable
from idempotency.outbox.dispatcher import POLL, Dispatcher
from idempotency.stores import clock
from idempotency.stores.sessions import replace_if_broken

logger = logging.getLogger("idempotency")

#: Seconds for which a run goes on claiming. What is under way then may take as long as its lease;
#: both together have to fit into the task's time limit (``checks.LONGEST_LEASE``).
CLAIMING = 30.0
#: Seconds between two looks of a dispatcher that watches an empty outbox.
IDLE = 0.5

#: What may go once it is old. A dead message waits for an operator, however long.
_PRUNED = (MessageState.DELIVERED, MessageState.DISCARDED)


def dispatch_outbox(using: str | None = None) -> Result:
    """Deliver what is due, and leave. On PostgreSQL one run at a time claims; dispatchers that
    watch (``watch``) may run beside it."""
    with closing(Dispatcher(using)) as dispatcher:
        until = time.monotonic() + CLAIMING

        def work(run: Run) -> None:
            dispatcher.run(lambda: time.monotonic() >= until)
            run.more = time.monotonic() >= until

        result = run_job("dispatch_outbox", work, dispatcher.using)
        # A run that came while this one ended found the lock taken and left its message behind.
        # What is due after that as well, others have locked.
        pause = 0.0
        while not (result.busy or result.more) and _is_something_due(dispatcher):
            time.sleep(pause)
            pause = POLL
            result = run_job("dispatch_outbox", work, dispatcher.using)
        if result.more:
            # Somebody else may go on claiming while this one waits for its slow sends.
            nudging.nudge(dispatcher.using)
        tally = dispatcher.finish()
    details = (f"{tally.retried} to be tried again",) if tally.retried else ()
    return replace(result, done=tally.delivered, failed=tally.dead, details=details)


def watch(using: str | None, stop: threading.Event) -> None:
    """Deliver until ``stop`` is set, then mark what is under way and return."""
    with closing(Dispatcher(using)) as dispatcher:
        while not stop.is_set():
            try:
                dispatcher.run(stop.is_set)
            except (OperationalError, InterfaceError):
                logger.exception("the dispatcher lost its database, and goes on when it is back")
                replace_if_broken(dispatcher.using)
            stop.wait(IDLE)
        dispatcher.finish()


def _is_something_due(dispatcher: Dispatcher) -> bool:
    names = [channel.name for channel in channels.all_channels()]
    due = claimable(dispatcher.using).filter(channel__in=names)
    for lane in dispatcher.resting:
        due = due.exclude(Q(channel=lane.channel) & Q(destination=lane.destination))
    return due.exists()


def prune_outbox(using: str | None = None, *, dry_run: bool = False) -> Result:
    """Delete what was delivered or discarded longer than ``OUTBOX_RETENTION`` ago, and its history.

    Never deletes what is pending, under way or dead.
    """
    return run_job("prune_outbox", _prune, using, dry_run)


def _prune(run: Run) -> None:
    run.walk(partial(_prune_batch, run.using, settings().batch_size, run.dry_run))


def _prune_batch(using: str, limit: int, dry_run: bool, after: int) -> tuple[int, int | None]:
    """Delete of the next messages those that may go. What comes behind a message that was written
    too late to be old enough is later still."""
    messages = OutboxMessage.objects.using(using)
    ids = list(messages.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:limit])
    old = clock.after(-settings().outbox_retention)
    prunable = messages.filter(pk__in=ids, state__in=_PRUNED, settled_at__lt=old)
    goes_on = len(ids) == limit and messages.filter(pk=ids[-1], created_at__lt=old).exists()
    pruned = prunable.count() if dry_run else _delete(using, prunable)
    return pruned, ids[-1] if goes_on else None


def _delete(using: str, prunable: QuerySet[OutboxMessage]) -> int:
    with transaction.atomic(using=using):
        # Locked, so that an operator's re-send either came before or finds nothing.
        ids = list(prunable.select_for_update().values_list("pk", flat=True))
        if not ids:
            return 0
        DeliveryEvent.objects.using(using).filter(message_id__in=ids)._raw_delete(using)
        return OutboxMessage.objects.using(using).filter(pk__in=ids)._raw_delete(using)
